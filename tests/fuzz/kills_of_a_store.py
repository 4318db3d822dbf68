"""A store under random work, stops and kills, beside a model of what it must serve.

    python -m tests.fuzz.kills_of_a_store [--seed 1] [--seconds 600]

One seed is the life of one store: sixty steps of messages, time that passes, deletions of topics and log files, stops
and kills. After each start, and at the end, it serves exactly what it acknowledged, and no offset comes again. A
failure names its seed and steps, and leaves its directory; threads make it depend on the machine's pace too, so that a
seed may need several runs.

A kill happens in this process, and so it ends the store's threads between two of their tasks: a thread that went on
would write into the files of the store that is opened next, which no killed process does. What was written stays.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import logging
import random
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest
from tests.helpers.waiting import real_time
from tests.store.conftest import StoreBench, put, served

from cometmq.message.record import decode_record
from cometmq.store import checkpoints, retention
from cometmq.store.message_store import MessageStore
from cometmq.store.recovery import known_files
from cometmq.testing import VirtualClock

STEPS: Final = 60
TOPICS: Final = 12
QUEUES: Final = 2
LOG_FILE: Final = 8_192
QUEUE_FILES: Final = (100, 200, 2_000)
BODIES: Final = (0, 100, 900)
TURNS: Final = (1, 5, 40)
"""Messages of one turn."""

Key = tuple[str, int]
Acknowledged = dict[Key, list[tuple[int, bytes]]]
"""Of each queue the log offsets and bodies."""


def lower_limits(patch: pytest.MonkeyPatch) -> None:
    """Let a few queues take the ways of thousands."""
    patch.setattr(known_files, "_MANY_TOPICS", 1)
    patch.setattr(checkpoints, "_QUEUES_AT_ONCE", 4)
    patch.setattr(retention, "_QUEUES_PER_TURN", 3)


class Life:
    """The life of one store under an empty directory."""

    def __init__(self, root: Path, seed: int) -> None:
        self._random = random.Random(seed)
        self._seed = seed
        self._root = root
        self._clock = VirtualClock()
        self._config = StoreBench(root).config
        if self._random.random() < 0.5:
            size = self._random.choice(QUEUE_FILES)
            self._config = dataclasses.replace(
                self._config, mapped_file_size_commit_log=LOG_FILE, mapped_file_size_consume_queue=size
            )
        self._acknowledged: Acknowledged = {}
        self._deleted: dict[str, dict[str, int]] = {}
        self._messages = 0
        self._trace: list[str] = []
        self._store = self._open()
        self._steps: dict[str, tuple[int, Callable[[], Awaitable[None] | None]]] = {
            "put": (5, self._put),
            "put large": (1, lambda: self._put(BODIES)),
            "tick": (2, lambda: self._clock.advance(self._random.choice((1, 30, 70)))),
            "kill": (2, self._kill),
            "stop": (1, self._stop),
            "delete log files": (1, self._delete_log_files),
            "delete a topic": (1, self._delete_topic),
            "turn": (1, lambda: None),
            "wait": (1, lambda: None),
        }

    async def run(self) -> None:
        """Take all steps.

        :raises AssertionError: the store does not serve what it acknowledged.
        """
        self._store.start()
        weights = [weight for weight, _ in self._steps.values()]
        for name in self._random.choices(list(self._steps), weights, k=STEPS):
            self._trace.append(name)
            try:
                if (work := self._steps[name][1]()) is not None:
                    await work
            except Exception as error:
                raise AssertionError(f"seed {self._seed}, after {self._trace}, in {self._root}: {error!r}") from error
            await real_time(self._random.choice((0.002, 0.03)) if name == "wait" else 0)
        self._stop()
        self._store.close_now()

    def _open(self) -> MessageStore:
        return MessageStore.open(self._config, clock=self._clock)

    # --- steps ----------------------------------------------------------------------------------
    def _put(self, sizes: tuple[int, ...] = (5,)) -> None:
        batch: list[tuple[Key, int, bytes]] = []
        for _ in range(self._random.choice(TURNS)):
            self._messages += 1
            key = (f"T{self._random.randrange(TOPICS)}", self._random.randrange(QUEUES))
            body = b"%d " % self._messages + b"x" * self._random.choice(sizes)
            batch.append((key, put(self._store, *key, body), body))
        self._store.batch.commit()
        for key, offset, body in batch:
            self._acknowledged.setdefault(key, []).append((offset, body))

    async def _delete_log_files(self) -> None:
        await self._store.wait_flushed(self._store.max_physical_offset)
        self._store._maintenance.retention.delete_files(force=True)

    def _delete_topic(self) -> None:
        """As a broker does: what says so is on the disk before the files go."""
        topic = f"T{self._random.randrange(TOPICS)}"
        self._deleted[topic] = {"position": self._store.max_physical_offset, "timeMs": 1}
        (self._root / "comet").mkdir(exist_ok=True)
        (self._root / "comet" / "deletedTopics.json").write_text(json.dumps({"topics": self._deleted, "groups": {}}))
        self._store.delete_topic(topic)
        for key in [key for key in self._acknowledged if key[0] == topic]:
            del self._acknowledged[key]

    def _stop(self) -> None:
        self._store.close_now()
        self._store = self._open()
        assert not self._store.findings, self._store.findings
        self._check()
        self._store.start()

    def _kill(self) -> None:
        self.end_without_a_stop(self._store)
        self._store = self._open()
        self._check()
        self._store.start()

    @staticmethod
    def end_without_a_stop(store: MessageStore) -> None:
        """End timers and threads, and write nothing more."""
        maintenance, flush, log = store._maintenance, store._flush, store._log
        maintenance._closing = maintenance.checkpoints._closing = flush._closed = store._closed = True
        for repeated in maintenance._repeated:
            repeated.close()
        if maintenance._next_block is not None:
            maintenance._next_block.cancel()
        maintenance.retention.stop()
        for part in (maintenance.checkpoints, flush, log):
            part._worker.shutdown()
        for segment in log.segments:
            segment.close()
        if log._ahead is not None and log._ahead.exception() is None:
            log._ahead.result().close()
        if store._index is not None:
            store._index.close()
        maintenance._opened.lock.release()

    # --- what must hold -------------------------------------------------------------------------
    def _check(self) -> None:
        first = self._store.min_physical_offset
        found = {
            key: [decode_record(record).body for record in records] for key, records in served(self._store).items()
        }
        for key, messages in self._acknowledged.items():
            kept = [body for offset, body in messages if offset >= first]
            assert found.pop(key, []) == kept, key
            assert self._store.queue(*key).max_offset() == len(messages), key
        assert not found, f"messages of deleted topics: {found}"


def run(seed: int, root: Path) -> None:
    """Let one store live; its directory is gone afterwards, unless something was wrong."""
    shutil.rmtree(root, ignore_errors=True)
    asyncio.run(Life(root, seed).run())
    shutil.rmtree(root)


def main() -> None:
    """Run one seed after the other, until one fails or the time is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--seconds", type=float, default=600.0)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    seed, end = options.seed, time.monotonic() + options.seconds
    with pytest.MonkeyPatch.context() as patch:
        lower_limits(patch)
        while time.monotonic() < end:
            run(seed, Path(tempfile.gettempdir()) / f"cometmq-fuzz-{seed}")
            seed += 1
    print(f"{seed - options.seed} stores served what they acknowledged")


if __name__ == "__main__":
    main()
