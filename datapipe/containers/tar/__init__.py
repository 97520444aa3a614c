"""Read and write tar files in WebDataset's form: datapipe's own and those of other tools."""
