"""Send jobs with priorities. POP and gRPC consumers of the topic receive the urgent ones first.

python examples/priority.py [NAMESRV]
"""

import asyncio
import sys

from cometmq.client import Admin, Message, Producer

JOBS = {"weekly report": 0, "invoice": 1, "disk is full": 3, "outage": 9}
"""Each job with its priority; a larger number is more urgent."""


async def main(namesrv: str) -> None:
    """Send the jobs to a topic with four levels, and print the level of each: its queue."""
    async with Admin(namesrv) as admin:
        await admin.create_topic("jobs", queues=4, message_type="PRIORITY")
    async with Producer("planner", namesrv) as producer:
        for job, priority in JOBS.items():
            sent = await producer.send(Message("jobs", job.encode(), priority=priority))
            print(f"{job}: level {sent.queue.queue_id}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "localhost:9876"))
