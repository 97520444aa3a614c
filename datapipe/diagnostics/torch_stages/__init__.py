"""A look into torch's DataLoader: what each batch cost, measured where it was made.

`install` puts probes into torch's own classes, `probe` measures in workers, `arrivals` takes over in the main
process, `attribution` says which stage is at fault. Importing this room imports nothing but the standard library.
"""
