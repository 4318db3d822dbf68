"""Send a request over a topic and wait for its reply.

python examples/request_reply.py [NAMESRV]
"""

import asyncio
import sys
from collections.abc import Sequence

from cometmq.client import Message, MessageExt, Producer, PushConsumer, RequestTimeoutError


async def main(namesrv: str) -> None:
    """Reply to each request as a consumer of the topic `sums`, and send a request as a producer."""
    async with Producer("sum-service", namesrv) as replier, Producer("sum-client", namesrv) as asker:
        await asker.send(Message("sums", b"1 1"))  # creates the topic; it is not a request and gets no reply

        async def listener(messages: Sequence[MessageExt]) -> None:
            for message in messages:
                if "CORRELATION_ID" in message.properties:
                    left, right = map(int, message.body.split())
                    await replier.reply(message, b"%d" % (left * right))

        service = PushConsumer("sum-service", listener, namesrv)
        await service.subscribe("sums")
        async with service:
            try:
                reply = await asker.request(Message("sums", b"7 6"), timeout_s=10)
                print(f"7 * 6 = {reply.body.decode()}")
            except RequestTimeoutError as error:
                print(error)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "localhost:9876"))
