"""Compute which sample comes when, and its random draws: arithmetic on positions and seeds."""
