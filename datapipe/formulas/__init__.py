"""Derive formulas of the index from `__getitem__`s that only take parts of arrays; by them whole batches are gathered."""
