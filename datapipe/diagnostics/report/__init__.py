"""Present a diagnosis document to people and to other programs.

`document` reads it; `screen`, `page`, `trace` and `compare` are pure functions of it. This room neither measures nor judges,
and does not import torch.
"""
