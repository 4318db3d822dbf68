"""Show every attempt to send and every listener call, and refuse messages before they are sent.

python examples/hooks.py [NAMESRV]
"""

import sys
import threading

from cometmq.client import (
    CheckForbiddenContext,
    ConsumeFromWhere,
    ConsumeMessageContext,
    ConsumeMessageHook,
    Message,
    PushConfig,
    SendForbiddenError,
    SendMessageContext,
    SendMessageHook,
)
from cometmq.client.sync import SyncProducer, SyncPushConsumer


def sent(context: SendMessageContext) -> None:
    """Print each attempt; called after it."""
    print(f"sent {len(context.messages)} to {context.queue.topic} in {context.ended_at_ms - context.begun_at_ms} ms")


def check(context: CheckForbiddenContext) -> None:
    """Refuse a message by raising; called before each attempt."""
    if any(b"password" in message.body for message in context.messages):
        raise ValueError("passwords do not belong into messages")


def main(namesrv: str) -> None:
    """Send to the topic `audited`, and consume it as `auditor`."""
    done = threading.Event()

    def consumed(context: ConsumeMessageContext) -> None:
        print(f"consumed {len(context.messages)}: {context.status}")
        done.set()

    hooks = [SendMessageHook(after=sent)]
    with SyncProducer("auditor", namesrv, send_hooks=hooks, check_forbidden_hooks=[check]) as producer:
        producer.send(Message("audited", b"hello"))
        try:
            producer.send(Message("audited", b"my password"))
        except SendForbiddenError as error:
            print(f"refused: {error}")

    config = PushConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer = SyncPushConsumer(
        "auditor", lambda messages: None, namesrv, config=config, consume_hooks=[ConsumeMessageHook(after=consumed)]
    )
    consumer.subscribe("audited")
    with consumer:
        done.wait(30)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost:9876")
