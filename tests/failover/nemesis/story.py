"""A random story of faults under load, and the verdict over its history."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.failover.checker.findings import Finding, report
from tests.failover.checker.groups import check_groups
from tests.failover.checker.history import History
from tests.failover.checker.masters import check_masters
from tests.failover.checker.queues import check_queues, totals
from tests.failover.checker.register import check_documents
from tests.failover.checker.replicas import check_replicas, epochs_of, read_log
from tests.failover.nemesis.faults import FAULTS, Fault, end_all
from tests.failover.nemesis.load import PAUSE_S, TOPIC, Load, LoadOptions, read_all
from tests.failover.nemesis.members import NAMES, RunningSet
from tests.helpers.waiting import block_for, wait_for

from cometmq.client.admin import Admin
from cometmq.errors import CometMQError

HEALTHY_S: Final = 60.0
"""Time after the last fault within which all members are in sync and a message is acknowledged."""
OFFSETS_BEHIND_S: Final = 15.0
"""An old master that is cut off may take offsets for the length of a fault, and a killed broker loses those of its
commit period (``flushConsumerOffsetInterval``, 5 s)."""
MOST_AT_ONCE: Final = 3
LEAST_ACKNOWLEDGED: Final = 50
"""With fewer messages, a history proves nothing."""


async def _create_topic(namesrvs: Sequence[str], queues: int) -> None:
    async with Admin(";".join(namesrvs)) as admin:
        await admin.create_topic(TOPIC, queues=queues)


@dataclass
class Story:
    """One run: its load, its faults and what was found.

    :param pause_s: that of :class:`LoadOptions`.
    """

    members: RunningSet
    seed: int
    pause_s: float = PAUSE_S
    history: History = field(default_factory=History)
    say: Callable[[str], None] = lambda text: None
    findings: list[Finding] = field(default_factory=list)

    def options(self) -> LoadOptions:
        """Return the options of the load."""
        return LoadOptions(self.members.namesrv_addresses, self.members.name_at, seed=self.seed, pause_s=self.pause_s)

    def note(self, text: str) -> None:
        """Write a fault into the history."""
        self.history.note(text)
        self.say(text)

    def run(self, seconds: float, faults: Sequence[Fault] = FAULTS) -> None:
        """Tell a random story of this length, and judge it."""
        rng = random.Random(self.seed)
        with self.loaded() as load:
            ends = time.monotonic() + seconds
            while time.monotonic() < ends and not self.findings:
                self._chapter(rng, faults, ends)
                if rng.random() < 0.5:
                    self.heal(load)
            self.heal(load)
            # A fault may have stopped all acknowledgements for the whole time.
            if not self.findings:
                wait_for(lambda: len(self._acknowledged()) >= LEAST_ACKNOWLEDGED, "enough is acknowledged", HEALTHY_S)
        self.judge()

    @contextmanager
    def loaded(self) -> Iterator[Load]:
        """Put the set under load inside the block; all members are in sync at its beginning."""
        self._begin()
        with Load(self.history, self.options()).running() as load:
            self.heal(load)
            yield load

    def _begin(self) -> None:
        """Wait for the first master, and create the topic."""

        def is_created() -> bool:
            with suppress(CometMQError):
                asyncio.run(_create_topic(self.members.namesrv_addresses, self.options().queues))
                return True
            return False

        wait_for(is_created, "the set has a master", HEALTHY_S)

    def _chapter(self, rng: random.Random, faults: Sequence[Fault], ends: float) -> None:
        """Begin up to three faults, wait, and end them."""
        chosen = rng.sample(faults, rng.choice((1, 1, 2, MOST_AT_ONCE)))
        lasts = rng.uniform(0.1, min(fault.longest_s for fault in chosen))
        undo = []
        for fault in chosen:
            text, end = fault.begin(self.members, rng)
            self.note(text)
            undo.append((text, end))
            block_for(rng.uniform(0, 0.5))
        block_for(min(lasts, max(ends - time.monotonic(), 0.1)))
        for text, end in rng.sample(undo, len(undo)):
            end()
            self.note(f"over: {text}")
        if rng.random() < 0.7:
            end_all(self.members, rng)
            block_for(rng.uniform(0, 2))

    def heal(self, load: Load) -> None:
        """End all faults; wait until all members are in sync, and a message sent from now on is acknowledged."""
        if self.findings:
            return
        end_all(self.members, random.Random(self.seed))
        begun = time.monotonic()

        def is_healthy() -> bool:
            return load.last_ok > begun and {one.name for one in self.members.in_sync()} == set(NAMES)

        try:
            wait_for(is_healthy, "the set is healthy", HEALTHY_S)
        except TimeoutError:
            running = ", ".join(name for name, one in self.members.members.items() if one.server.pid is not None)
            text = f"there was no fault for {HEALTHY_S:g} s, but the set does not work; running: {running}"
            self.findings.append(Finding("stuck", f"{text}; {self.members.document()}"))
        else:
            self.note(f"healthy after {time.monotonic() - begun:.1f} s: {self.members.master()} is the master")

    # --- the verdict ------------------------------------------------------------------------------
    def judge(self) -> None:
        """Read everything, kill all members, and compare."""
        if not self.findings:
            self._read_all()
        documents = self.members.documents()
        for name in NAMES:
            self.members.kill(name)
        logs = {name: read_log(self.members.members[name].store) for name in NAMES}
        acknowledged = self._acknowledged()
        confirmed = max(acknowledged, default=0) + 1
        if len(acknowledged) < LEAST_ACKNOWLEDGED:
            self.findings.append(Finding("empty history", f"only {len(acknowledged)} messages were acknowledged"))
        if not self.findings:
            longest = max(logs.values(), key=lambda log: log.end)
            masters = {document.epoch: document.master.name for document in documents}
            self.findings += check_replicas(logs, max(confirmed, min(log.end for log in logs.values())))
            self.findings += check_masters(self.history, epochs_of(longest), masters)
            self.findings += check_queues(self.history)
        self.findings += check_documents(documents)
        self.findings += check_groups(self.history, OFFSETS_BEHIND_S)

    def _acknowledged(self) -> list[int]:
        return [one.log_offset for one in self.history.sends if one.log_offset is not None]

    def _read_all(self) -> None:
        master = self.members.master() or ""
        for poll in read_all(self.members.members[master].address, self.options().queues, master):
            self.history.add(poll)

    def summary(self) -> str:
        """Return the numbers of the story."""
        documents = self.members.documents()
        epochs = documents[-1].epoch if documents else 0
        return f"{totals(self.history)}; {epochs} epochs, {len(documents)} documents"

    def report(self, directory: Path) -> str:
        """Write the history down; return what was found, with the part of the history that concerns it."""
        self.history.write(directory / "history.jsonl")
        (directory / "history.txt").write_text("\n".join(self.history.lines()))
        with suppress(CometMQError):
            documents = "\n".join(map(str, self.members.documents()))
            (directory / "documents.txt").write_text(documents)
        return f"{report(self.history, self.findings)}\nseed {self.seed}; the whole history is in {directory}"
