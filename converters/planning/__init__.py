"""Plan a conversion: list the source, find duplicates, and decide what is written, each in a file that is written once."""
