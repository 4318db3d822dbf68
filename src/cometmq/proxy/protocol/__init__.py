"""The messages of ``apache.rocketmq.v2``: Apache's definition (``apache/``, with its LICENSE), and classes made of it.

``scripts/proto_types`` writes ``v2.py`` and ``v2.pyi`` from ``v2.binpb``, which protoc makes of the definition.
"""
