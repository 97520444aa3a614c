"""Batches of rows of tables: from ranges of positions to row-major matrices."""
