"""The archive: a directory of Parquet files with a log of commits, as plain files, Delta Lake or Iceberg."""
