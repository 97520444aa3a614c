"""What a conversion will write: the source's listing, its duplicates, and the plan, in files that are written once."""
