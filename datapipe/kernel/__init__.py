"""What every loader does, whatever its batches hold: steps, threads, prefetch, the way to the device, state, seeds."""
