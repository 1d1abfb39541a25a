"""Topics as tables: record batches to Parquet files of a Delta Lake or Iceberg table, and history read from them."""
