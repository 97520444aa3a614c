"""What docs/benchmarks.md says, made from the results: one module for each part of the page."""
