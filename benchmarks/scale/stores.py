"""Files that a broker finds at its start: a log with holes, with few or many queues, and a file of accounts."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Final

from cometmq.message.record import encode_record
from cometmq.store.config import StoreConfig
from cometmq.store.log.commit_log import filler
from cometmq.store.log.mapped_file import file_name
from cometmq.store.message_store import MessageStore

TOPIC: Final = "Log"
QUEUES: Final = 4
FILE_BYTES: Final = 1 << 30
RECORDS_OF_FILE: Final = 100
BODY: Final = bytes(128)
FILE_MS: Final = 60_000
"""Between the first records of two files."""
BEGIN_MS: Final = int(time.time() * 1000) - 30 * 86_400_000
_HOST: Final = bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))
RULES: Final = 10


def write_log(root: Path, files: int, topics: int = 1) -> None:
    """Write so many log files of 1 GiB, nearly all of which are a hole: records, then a filler to the end.

    Message after message goes to the next queue: a queue of the first topic, then of the second, and so on.
    """
    directory = root / "commitlog"
    directory.mkdir(parents=True)
    names = [TOPIC, *(f"{TOPIC}-{number}" for number in range(1, topics))]
    _write_topics(root / "config", names)
    number = 0
    for file in range(files):
        start = file * FILE_BYTES
        parts: list[bytes] = []
        size = 0
        for at in range(RECORDS_OF_FILE):
            stored_ms = BEGIN_MS + file * FILE_MS + at
            record = encode_record(
                topic=names[number // QUEUES % topics],
                queue_id=number % QUEUES,
                queue_offset=number // (QUEUES * topics),
                physical_offset=start + size,
                body=BODY,
                properties_text=f"KEYS\x01key-{number}\x02",
                born_timestamp=stored_ms,
                born_host=_HOST,
                store_timestamp=stored_ms,
                store_host=_HOST,
            )
            parts.append(record)
            size += len(record)
            number += 1
        if file < files - 1:
            parts.append(filler(FILE_BYTES - size))
        path = directory / file_name(start)
        path.write_bytes(b"".join(parts))
        os.truncate(path, FILE_BYTES)
        seconds = (BEGIN_MS + file * FILE_MS) / 1000
        os.utime(path, (seconds, seconds))


def write_queues(root: Path, count: int) -> None:
    """Write a log with one message for each of so many queues, and have a start make their files."""
    write_log(root, count // RECORDS_OF_FILE, count // QUEUES)
    MessageStore.open(StoreConfig(store_path_root_dir=str(root))).close_now()


def _write_topics(directory: Path, names: list[str]) -> None:
    directory.mkdir(parents=True)
    rows = {name: {"topicName": name, "readQueueNums": QUEUES, "writeQueueNums": QUEUES, "perm": 6} for name in names}
    table = {"topicConfigTable": rows, "dataVersion": {"counter": 1, "timestamp": BEGIN_MS}}
    (directory / "topics.json").write_text(json.dumps(table), encoding="utf-8")


def write_accounts(directory: Path, count: int) -> None:
    """Write a file of ACL 1.0 with so many accounts; requests of this machine need none."""
    directory.mkdir(parents=True, exist_ok=True)
    rules = "".join(f"  - Topic-{number}=PUB|SUB\n" for number in range(RULES))
    rows = [
        f"- accessKey: account-{number}\n  secretKey: secret-of-account-{number}\n  topicPerms:\n{rules}"
        for number in range(count)
    ]
    path = directory / "plain_acl.yml"
    fresh = path.with_suffix(".tmp")
    fresh.write_text(f"globalWhiteRemoteAddresses:\n- 127.0.0.1\naccounts:\n{''.join(rows)}", encoding="utf-8")
    fresh.chmod(0o600)
    fresh.replace(path)
