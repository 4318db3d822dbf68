"""The archive job, which copies topics or a store to Parquet, Delta Lake or Iceberg, and the upkeep jobs for
archives.
"""
