"""Fit samples of known lengths into rows: the settings, the fitting, and plans of it that are kept."""
