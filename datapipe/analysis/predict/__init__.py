"""Predict what remedies would gain, by a replay of the measured times under each. Pure."""
