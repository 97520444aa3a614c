"""Whole training scripts with a known fault each, diagnosed as a user would do it; every remedy's printed code is carried out."""
