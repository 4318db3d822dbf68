"""The archive: a directory of Parquet files with a commit log, stored as plain files, Delta Lake or Iceberg."""
