"""Tar files in WebDataset's form: datapipe's own and others'."""
