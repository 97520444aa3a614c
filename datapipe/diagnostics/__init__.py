"""Diagnosis of training: measure where the time of its steps goes, explain it, and predict the effect of remedies."""
