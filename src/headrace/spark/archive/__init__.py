"""Archives: topics copied to Parquet files of a Delta Lake or Iceberg table, and reads of archived records."""
