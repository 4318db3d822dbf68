"""Consume `orders` by broadcasting: every running copy gets every message; offsets are stored in the home directory.

python examples/broadcast.py [NAMESRV [COUNT]]
"""

import contextlib
import sys
import threading
from collections.abc import Sequence

from cometmq.client import ConsumeFromWhere, MessageExt, MessageModel, PushConfig
from cometmq.client.sync import SyncPushConsumer


def main(namesrv: str, count: int) -> None:
    """Count the messages."""
    seen = 0
    enough = threading.Event()
    lock = threading.Lock()

    def listener(messages: Sequence[MessageExt]) -> None:
        nonlocal seen
        with lock:
            seen += len(messages)
            if seen >= count:
                enough.set()

    config = PushConfig(
        message_model=MessageModel.BROADCASTING,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    )
    consumer = SyncPushConsumer("order-cache", listener, namesrv, config=config)
    consumer.subscribe("orders")
    with consumer:
        enough.wait()
    print(f"{seen} messages")


if __name__ == "__main__":
    address = sys.argv[1] if len(sys.argv) > 1 else "localhost:9876"
    with contextlib.suppress(KeyboardInterrupt):
        main(address, int(sys.argv[2]) if len(sys.argv) > 2 else sys.maxsize)
