"""``cometmq demo``: orders from producer to archive and back, with a crash in the middle, and all counts compared.

Producer processes send changes of orders, a group of consumer processes receives them, and the broker is killed and
started again. Spark archives the topic, audits it, replays the archive into another topic and audits that. Then the
counts of acknowledged, stored, consumed, archived and replayed messages are compared queue by queue.
"""

from cometmq.cli.demo.command import command

__all__ = ["command"]
