"""Columns of tables: which of them make up which matrix of a batch, and what is done to their values before."""
