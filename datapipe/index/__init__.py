"""Where each sample's bytes are: manifests, sidecars, and the indexes that loaders read by."""
