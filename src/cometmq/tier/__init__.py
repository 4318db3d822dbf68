"""Reads archived messages for a broker, in a process of its own.

The broker starts the process (:mod:`cometmq.broker.archived`), and the two exchange the frames of
:mod:`cometmq.tier.frames` over a socket pair. The process reads row groups of the archive's Parquet files by ranges and
rebuilds the stored records from the columns, byte by byte. It needs pyarrow and numpy; frames need neither.
"""
