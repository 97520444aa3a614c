"""Generated data that tests, benchmarks and the demo share."""
