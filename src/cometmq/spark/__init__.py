"""PySpark over RocketMQ: the data source ``format("rocketmq")`` and the pipeline jobs.

Importing this package costs nothing: PySpark and PyArrow are loaded by the modules that need them.

=====================  ==========================================================================
``source``             ``RocketMQDataSource``, what ``spark.read.format("rocketmq")`` finds
``environment``        ``demand_spark()``: what is missing for Spark here, and ``local_session()``
``decode``             stored records → Arrow columns, vectorised
``archive``            ``archive(namesrv, topics, to, checkpoint, *, trigger="availableNow",
                       starting_offsets="earliest", max_offsets_per_trigger=1_000_000,
                       options=None, spark=None, master="local[*]", on_batch=None, stop=None)
                       -> ArchiveReport``
``archive_log``        ``ArchiveLog(to)``: committed files, counts per queue; no Spark
``archive_reader``     ``read_archive(spark, to) -> DataFrame``
``lag``                ``lag_of(source)`` and ``lag_now(source, namesrv)``: how far a query is behind
``lag_listener``       ``LagListener``: the same for all queries of a session, for logs and Prometheus
=====================  ==========================================================================

``ArchiveReport`` has ``rows``, ``bytes``, ``files``, ``batches``, ``seconds``, ``finished``,
``warnings`` and ``queues``: one ``QueueTotals(topic, broker, queue_id, first, next, rows)`` for each queue in
the archive (all batches ever committed, not only those of this run), ``complete`` and
``render()``. ``cometmq pipeline archive`` is the same job as a command.
"""
