"""The archive job: topics or a store into Parquet, Delta Lake or Iceberg, and the upkeep of archives."""
