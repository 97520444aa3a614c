"""Inspect torch's DataLoader: measure each batch's cost where it is made.

`install` puts probes into torch's own classes, `probe` measures in workers, `profile` stores what arrives in the main
process. Importing this package imports only the standard library.
"""
