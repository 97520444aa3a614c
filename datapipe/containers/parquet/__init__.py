"""Read Parquet files whose rows are samples: datapipe's own and those of other tools."""
