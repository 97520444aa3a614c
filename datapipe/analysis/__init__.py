"""Judge what was measured of a training, and predict what remedies would gain."""
