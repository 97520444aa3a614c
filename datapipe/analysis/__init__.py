"""What was measured of a training, judged, and what remedies would gain, predicted."""
