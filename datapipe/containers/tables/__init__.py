"""Read tables of numbers and strings: Parquet, Arrow and Feather files."""
