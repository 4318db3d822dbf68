"""``cometmq demo``: the whole way of a message, with a crash in the middle, and every count compared.

Producer processes send orders that change their state, a group of consumer processes receives them, the
broker is killed and started again on the way, Spark archives the topic, audits it, replays the archive into another
topic and audits that. Then what was acknowledged, stored, consumed, archived and replayed is compared queue by queue.
"""

from cometmq.cli.demo.command import command

__all__ = ["command"]
