"""Bodies as text, JSON, Avro and Protobuf, in both directions, as functions of columns; no jars are needed.

``frame.select(from_avro("body", schema).alias("order"))``. See ``docs/spark-bodies.md``.
"""

from cometmq.spark.bodies.avro import from_avro, to_avro
from cometmq.spark.bodies.protobuf import from_protobuf, to_protobuf
from cometmq.spark.bodies.text import as_json, as_text

__all__ = ["as_json", "as_text", "from_avro", "from_protobuf", "to_avro", "to_protobuf"]
