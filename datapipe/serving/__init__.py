"""Decode for loaders on other machines: the service that `datapipe serve` runs."""
