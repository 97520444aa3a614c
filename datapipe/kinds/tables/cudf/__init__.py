"""Read row groups of Parquet files on a GPU by cuDF, and pack their columns into row-major matrices there."""
