"""A new kind of data, worked out: files of whole numbers, one a line. Each file is read once for all batches that it is part of.

A kind says what a sample is, in which order samples come, and how a batch is filled (`kind`); the kernel does the rest: threads,
prefetch, shared pieces, bad samples, ranks, states. Users pass its data to a loader (`data`), and the commands ask what is at a
path (`inspection`) and how fast it loads (`bench`). In datapipe this folder is `datapipe/kinds/numbers/`, and its name gets
a line in `KINDS` of `datapipe/kinds/registry.py` and one in `KINDS` of `tests/suites/test_loader_suite.py`. A line in `FORMS` of
`datapipe/containers/forms.py` says how it is known:

    FORMS["numbers"] = FormFacts(title="files of numbers", known_by="datapipe.kinds.numbers.inspection", kind="numbers")
"""
