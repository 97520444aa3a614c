"""What a diagnosis document says, for people and for other programs.

`document` reads it; `screen`, `page`, `trace`, `compare` and `sinks` are pure functions of it, but for the sink that
writes TensorBoard's files. Nothing here measures or judges, and nothing imports torch.
"""
