"""The messages of ``apache.rocketmq.v2``: Apache's definition (in ``apache/``, with its LICENSE) and generated classes.

``scripts/proto_types`` writes ``v2.py`` and ``v2.pyi`` from ``v2.binpb``, which protoc compiles from the definition.
"""
