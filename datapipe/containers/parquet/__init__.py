"""Parquet files whose rows are samples: datapipe's own and others'."""
