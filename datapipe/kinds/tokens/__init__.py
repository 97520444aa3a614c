"""Batches of token ids: documents packed into rows."""
