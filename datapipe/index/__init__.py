"""Locate each sample's bytes: manifests, sidecars, and the indexes that loaders read."""
