"""How finished shards become a dataset, in a directory or in an object store, and what may be replaced there."""
