"""Archives of a broker's store as the job writes them, and a broker whose older messages are only there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.broker.wire import Wire

from cometmq.broker.controller import Broker
from cometmq.remoting.codes import ResponseCode
from cometmq.spark.archives.log import ArchiveLog
from cometmq.spark.jobs.archive.from_store import write_split
from cometmq.spark.jobs.archive.writer import OpenedArchive, commit_manifests
from cometmq.spark.store.options import parse_store_options
from cometmq.spark.store.scan import splits
from cometmq.testing import VirtualClock, wait_until

BODY_BYTES = 20_000
MESSAGES = 800
"""Three log files."""


def archive_store(store: Path, to: Path, *, batch: int = 0, broker_name: str = "broker-a") -> ArchiveLog:
    """Archive the topics of a store that are not archived yet, as ``cometmq pipeline archive --store`` does."""
    options = parse_store_options({"path": str(store), "brokerName": broker_name})
    log = ArchiveLog(to)
    for number, split in enumerate(splits(options), batch):
        made = write_split(options, split, OpenedArchive.of(log), log.next_offsets())
        commit_manifests(log, "run", number, list(made))
    return log


async def send_many(wire: Wire, topic: str, clock: VirtualClock, count: int = MESSAGES) -> None:
    """Send messages with keys and one of three tags to queue 0; each four of them have one store time."""
    for number in range(count):
        if not number % 4:
            clock.advance(0.01)
        body = (b"%06d" % number) * (BODY_BYTES // 6)
        await wire.send(
            topic,
            body,
            properties=f"KEYS\x01key-{number} all\x02UNIQ_KEY\x01{number:032X}\x02TAGS\x01tag-{number % 3}\x02",
        )


def delete_log_files(broker: Broker) -> int:
    """Let retention delete all log files but the last, as if they were old."""
    for file in (broker.store.config.root / "commitlog").iterdir():
        os.utime(file, (0, 0))
    return broker.store.delete_expired_files()


async def delete_old_messages(broker: Broker, clock: VirtualClock) -> int:
    """Let retention delete all log files but the last; return the first offset of queue 0 of ``T``."""
    await broker.store.wait_flushed(broker.store.max_physical_offset)
    assert delete_log_files(broker) > 0
    assert await wait_until(clock, lambda: broker.store.extent("T", 0)[0] > 0, 60)
    return broker.store.extent("T", 0)[0]


def records_of(broker: Broker, topic: str, queue_id: int = 0) -> list[bytes]:
    """The bytes of all records of a queue in the store."""
    store = broker.store
    queue = store.queue(topic, queue_id)
    low, high = store.extent(topic, queue_id)
    return [b"".join(store.get_message(queue, offset, 1).chunks) for offset in range(low, high)]


def header_of(answer: Any) -> dict[str, int]:
    """The fields of an answer to a pull."""
    return {name: int(value) for name, value in answer.ext_fields.items()}


def is_readable(broker: Broker) -> bool:
    """Whether the archive of a broker can be read."""
    return broker.archived is not None and broker.archived.is_readable


async def read_all(wire: Wire, topic: str, offset: int, end: int) -> list[bytes]:
    """Pull as a Java client does, from an offset to an end; return the bodies of the answers."""
    got: list[bytes] = []
    while offset < end:
        answer = await wire.pull(topic, queue_offset=offset, wait_ms=1000)
        assert answer.code in (
            ResponseCode.SUCCESS,
            ResponseCode.PULL_NOT_FOUND,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
        ), answer
        if answer.code == ResponseCode.SUCCESS:
            got.append(bytes(answer.body))
        offset = header_of(answer)["nextBeginOffset"]
    return got
