"""HDF5 files: datapipe's own and others'."""
