"""Runs in an environment with Airflow: finds the provider, and runs its trigger as the triggerer does.

python program.py NAMESRV TOPIC GROUP COUNT CONFIRMED prints the payloads of COUNT events as JSON, when Airflow has
stored the first CONFIRMED of them.
"""

import asyncio
import importlib
import json
import sys
from typing import Any

from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.triggers.shared_stream import SharedStreamManager


def trigger_of(namesrv: str, topic: str, group: str) -> Any:
    """The trigger as the triggerer makes it of what the database has."""
    given = MessageQueueTrigger(scheme="rocketmq", topic=topic, group=group, namesrv=namesrv)
    path, arguments = given.serialize()
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)(**json.loads(json.dumps(arguments)))


async def main(namesrv: str, topic: str, group: str, count: int, confirmed: int) -> None:
    """Take events as ``TriggerRunner.run_trigger`` does, and confirm them as the supervisor does."""
    trigger = trigger_of(namesrv, topic, group)
    key = trigger.shared_stream_key()
    manager = SharedStreamManager()
    events = trigger.filter_shared_stream(manager.subscribe(trigger_id=1, trigger=trigger, key=key))
    payloads = []
    async for event in events:
        sequence = manager.bind_pending_event(trigger_id=1, key=key)
        payloads.append(event.payload)
        if len(payloads) <= confirmed:
            manager.confirm_persisted([sequence])
        if len(payloads) == count:
            break
    for _ in range(50):
        await asyncio.sleep(0.02)  # the manager acknowledges in a task of its own
    await manager.stop_all()
    print(json.dumps(payloads))


async def run_alone(namesrv: str, topic: str, group: str, count: int) -> None:
    """Take events as older versions of Airflow do."""
    payloads = []
    events = trigger_of(namesrv, topic, group).run()
    async for event in events:
        payloads.append(event.payload)
        if len(payloads) > count:  # the first ones are acknowledged
            break
    await events.aclose()
    print(json.dumps(payloads))


if __name__ == "__main__":
    namesrv, topic, group, *counts = sys.argv[1:]
    if len(counts) == 2:
        asyncio.run(main(namesrv, topic, group, int(counts[0]), int(counts[1])))
    else:
        asyncio.run(run_alone(namesrv, topic, group, int(counts[0])))
