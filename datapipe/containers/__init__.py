"""Turn a path to samples into an index: one module per form of data, all of them named in `forms`."""
