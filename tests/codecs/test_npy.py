"""Headers of .npy files, read by several threads at once."""

from __future__ import annotations

import ast
import io
from typing import Any

import numpy as np
import pytest

from datapipe.codecs.npy import read_npy_header


def test_a_parse_that_another_thread_upset_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11 and 3.12 count the depth of all threads' syntax trees together (cpython#106905)."""
    parse, failures = ast.literal_eval, [SystemError("AST constructor recursion depth mismatch (before=63, after=60)")]

    def upset(text: Any) -> Any:
        if failures:
            raise failures.pop()
        return parse(text)

    monkeypatch.setattr(ast, "literal_eval", upset)
    stream = io.BytesIO()
    np.save(stream, np.zeros((3, 1, 97), np.int16))
    header = read_npy_header(stream.getvalue())
    assert (header.shape, header.dtype, header.start) == ((3, 1, 97), np.dtype("<i2"), 128)
    assert not failures
