"""Measure a training in its own process: time its steps and the stages of torch's loader, and try remedies on its data."""
