"""Celery and Kombu on CometMQ or Apache RocketMQ 5.

``import cometmq.integrations.kombu`` makes the URL ``cometmq://HOST:PORT`` known to Kombu; several nameservers are
separated by commas or semicolons. See ``docs/celery.md``.
"""

from cometmq.errors import require

require("the Kombu transport", "celery", "kombu")

from kombu.transport import TRANSPORT_ALIASES

TRANSPORT_ALIASES["cometmq"] = TRANSPORT_ALIASES["cometmqs"] = "cometmq.integrations.kombu.transport:Transport"
