"""What a `__getitem__` that only takes parts of arrays returns, as a formula of the index that gathers whole batches."""
