"""Ceilings: how many samples per second each part of this machine could bring, whatever the others do."""
