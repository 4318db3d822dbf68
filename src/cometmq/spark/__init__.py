"""PySpark over RocketMQ: the data source ``format("rocketmq")`` and the pipeline jobs.

Importing this package costs nothing: PySpark and PyArrow are loaded by the modules that need them.

==========================  =====================================================================================
``source``, ``sink``        ``format("rocketmq")``; ``store_source`` is ``format("rocketmq_store")``
``bodies``                  Avro, Protobuf, JSON and text as functions of columns
``lag``, ``lag_listener``   how far a query is behind, from its progress, and for logs and Prometheus
``environment``             what is missing for Spark here, and ``local_session()``
``decode``                  stored records → Arrow columns, vectorised
``job_source``              what most jobs read: brokers, an archive, a store
``archive``, ``replay`` …   the jobs, a function of that name each; beside each its ``…_report``
==========================  =====================================================================================

``docs/spark.md`` is the page of source and options, ``docs/spark-jobs.md`` and those beside it tell of the jobs.
"""
