"""The demo: orders from producer to archive and back, with a crash in the middle, and all counts compared.

``make demo`` sets it up and runs it; ``python -m examples.demo --help`` in a checkout lists its options.

Producer processes send changes of orders, a group of consumer processes receives them, and the broker is killed and
started again. Spark archives the topic, audits it, replays the archive into another topic and audits that. Then the
counts of acknowledged, stored, consumed, archived and replayed messages are compared queue by queue.
"""
