"""Fakes that tests, benchmarks and the demo share."""
