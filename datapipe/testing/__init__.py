"""Stand-ins that tests and benchmarks share. Nothing of the package imports them."""
