"""Read the bytes of samples, and keep what was costly to read or decode."""
