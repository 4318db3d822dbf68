"""Send ten thousand messages in as few requests as possible, with the synchronous producer.

python examples/batch.py [NAMESRV]
"""

import sys
import time

from cometmq.client import Message, PartlySentError
from cometmq.client.sync import SyncProducer


def main(namesrv: str) -> None:
    """Send to the topic `measurements`."""
    messages = [Message("measurements", b"%d" % number) for number in range(10_000)]
    with SyncProducer("sensor", namesrv) as producer:
        begun = time.perf_counter()
        try:
            results = producer.send_batch(messages)
        except PartlySentError as error:
            again = [
                message
                for message, outcome in zip(messages, error.outcomes, strict=True)
                if isinstance(outcome, Exception)
            ]
            print(f"{error}; sending {len(again)} again")
            results = producer.send_batch(again)
        print(f"{len(results)} messages in {time.perf_counter() - begun:.2f} s")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost:9876")
