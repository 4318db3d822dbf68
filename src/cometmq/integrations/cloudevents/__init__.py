"""CloudEvents as messages, in the form of the RocketMQ binding of CloudEvents' SDK for Java."""

from cometmq.errors import require

require("the CloudEvents binding", "cloudevents", "cloudevents")

from cometmq.integrations.cloudevents.binding import from_message, is_event, to_binary, to_structured

__all__ = ["from_message", "is_event", "to_binary", "to_structured"]
