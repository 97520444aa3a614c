"""Tables of numbers and strings: Parquet, Arrow and Feather files."""
