"""What a diagnosis document says, for people and for other programs.

`document` reads it; `screen`, `page`, `trace` and `compare` are pure functions of it. Nothing here measures or judges, and
nothing imports torch.
"""
