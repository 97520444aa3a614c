"""Convert tables in CSV, JSON lines, Parquet, Arrow or `.npy` files to tables that train fast.

`convert_table(TableConversion(...))` does what `datapipe convert --from table` does. One pass over the source finds the types of
columns, counts rows and names bad ones; a second one writes. Imports no torch.
"""
