"""Measure the steps of a training loop: the clock, the marks around `next()`, and what is kept of a process."""
