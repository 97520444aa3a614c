"""Read and write HDF5 files: datapipe's own and those of other tools."""
