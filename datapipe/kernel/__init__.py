"""The part of a loader that is the same for every kind of data: steps, threads, prefetch, the way to the device, state, seeds."""
