"""Answer each session in a lite topic of its own, and read the answers of one session.

python examples/lite_topics.py [NAMESRV]
"""

import asyncio
import sys

from cometmq.client import Admin, LiteTopicConsumer, Message, Producer


async def main(namesrv: str) -> None:
    """Send words to two sessions; one consumer reads only its own session, in order."""
    async with Admin(namesrv) as admin:
        await admin.create_lite_topic("replies", expiration_minutes=60)
        await admin.create_lite_group("sessions", "replies")
    mine = LiteTopicConsumer("sessions", "replies", namesrv=namesrv)
    async with Producer("agent", namesrv) as producer, mine:
        await mine.subscribe("session-1")
        for word in ("once", "upon", "a", "time"):
            for session in ("session-1", "session-2"):
                await producer.send(Message("replies", f"{word} ({session})".encode(), lite_topic=session))
        received = 0
        while received < 4:
            for message in await mine.receive():
                print(message.body.decode())
                await mine.ack(message)
                received += 1


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "localhost:9876"))
