"""Proof that the diagnosis is right: a device that logs its own work, and loaders with known faults."""
