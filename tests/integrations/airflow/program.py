"""Runs in an environment with Airflow: finds the provider, and runs its trigger as the triggerer does.

python program.py NAMESRV TOPIC GROUP COUNT CONFIRMED prints the payloads of COUNT events as JSON, when Airflow has
stored the first CONFIRMED of them.
python program.py store NAMESRV TOPIC GROUP FILE CONFIRMED stores the first CONFIRMED events in FILE, as the triggerer
does in Airflow's database, and takes further ones without storing them, until it is killed.
python program.py connection CONN_ID TOPIC sends a message to TOPIC with a connection, and prints the connection's type,
the outcome of its test, and the payload of the event to which the message leads.
"""

import asyncio
import importlib
import json
import sys
from pathlib import Path
from typing import Any

from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.providers_manager import ProvidersManager
from airflow.triggers.shared_stream import SharedStreamManager

from cometmq.client import Message
from cometmq.integrations.airflow.hook import RocketMQHook


def trigger_of(topic: str, group: str, **options: str) -> Any:
    """The trigger as the triggerer makes it of what the database has."""
    given = MessageQueueTrigger(scheme="rocketmq", topic=topic, group=group, **options)
    path, arguments = given.serialize()
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)(**json.loads(json.dumps(arguments)))


async def main(namesrv: str, topic: str, group: str, count: int, confirmed: int) -> None:
    """Take events as ``TriggerRunner.run_trigger`` does, and confirm them as the supervisor does."""
    trigger = trigger_of(topic, group, namesrv=namesrv)
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


async def store(namesrv: str, topic: str, group: str, file: str, confirmed: int) -> None:
    """Write a line for each event: whether it was stored, and its body."""
    trigger = trigger_of(topic, group, namesrv=namesrv)
    key = trigger.shared_stream_key()
    manager = SharedStreamManager()
    with Path(file).open("a", buffering=1) as lines:
        async for event in trigger.filter_shared_stream(manager.subscribe(trigger_id=1, trigger=trigger, key=key)):
            sequence = manager.bind_pending_event(trigger_id=1, key=key)
            if confirmed:
                lines.write(f"stored {event.payload['body']}\n")
                manager.confirm_persisted([sequence])
                confirmed -= 1
            else:
                lines.write(f"taken {event.payload['body']}\n")


async def run_alone(namesrv: str, topic: str, group: str, count: int) -> None:
    """Take events as older versions of Airflow do."""
    payloads = []
    events = trigger_of(topic, group, namesrv=namesrv).run()
    async for event in events:
        payloads.append(event.payload)
        if len(payloads) > count:  # the first ones are acknowledged
            break
    await events.aclose()
    print(json.dumps(payloads))


async def use(conn_id: str, topic: str) -> None:
    """Use a connection as a task and the triggerer do."""
    hook = ProvidersManager().hooks["rocketmq"]
    assert hook is not None
    made = await asyncio.to_thread(RocketMQHook, conn_id)
    with await asyncio.to_thread(made.get_conn) as producer:
        await asyncio.to_thread(producer.send, Message(topic, b"one"))
    is_good, text = await asyncio.to_thread(made.test_connection)
    async for payload in trigger_of(topic, "dags", conn_id=conn_id).run():
        print(json.dumps([{"type": hook.hook_name, "is_good": is_good, "text": text}, payload.payload]))
        break


if __name__ == "__main__":
    if sys.argv[1] == "connection":
        asyncio.run(use(*sys.argv[2:]))
        sys.exit()
    if sys.argv[1] == "store":
        at, name, members, lines, number = sys.argv[2:]
        asyncio.run(store(at, name, members, lines, int(number)))
        sys.exit()
    namesrv, topic, group, *counts = sys.argv[1:]
    if len(counts) == 2:
        asyncio.run(main(namesrv, topic, group, int(counts[0]), int(counts[1])))
    else:
        asyncio.run(run_alone(namesrv, topic, group, int(counts[0])))
