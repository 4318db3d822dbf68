"""The store against a model of itself: any order of sends, failures, stops and crashes.

The model is a list of bodies for each queue. Rules put messages, commit them (on a disk that may be full
or broken at any write), stop cleanly, and crash between any two steps. After each step what the
store serves must be the model; messages of a turn that failed must never appear.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.store.conftest import HOST
from tests.store.disks import MoodyDisk

from cometmq.message.record import iter_records
from cometmq.store.config import StoreConfig
from cometmq.store.errors import StoreError
from cometmq.store.message_store import MessageStore
from cometmq.store.write_batch import NewRecord

QUEUES = [("A", 0), ("A", 1), ("B", 0)]

Key = tuple[str, int]


class StoreMachine(RuleBasedStateMachine):
    """One store and the model beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="cometmq-machine-"))
        self.generation = 0
        self.disk = MoodyDisk()
        self.model: dict[Key, list[bytes]] = {key: [] for key in QUEUES}
        self.turn: list[tuple[Key, bytes]] = []
        self.count = 0
        self.failed = False
        self.store: MessageStore | None = None

    def config(self, root: Path) -> StoreConfig:
        return StoreConfig(
            store_path_root_dir=str(root),
            mapped_file_size_commit_log=4096,
            mapped_file_size_consume_queue=200,
            max_hash_slot_num=16,
            max_index_num=40,
        )

    @property
    def root(self) -> Path:
        return self.base / f"store{self.generation}"

    @initialize()
    def begin(self) -> None:
        self.store = MessageStore.open(self.config(self.root), disk=self.disk)

    @property
    def opened(self) -> MessageStore:
        assert self.store is not None
        return self.store

    # --- what may happen ------------------------------------------------------------------------
    @rule(place=st.sampled_from(QUEUES), size=st.integers(0, 1500), count=st.integers(1, 4))
    def put(self, place: Key, size: int, count: int) -> None:
        for _ in range(count):
            self.count += 1
            body = b"%d:" % self.count + b"x" * size
            queue = self.opened.queue(*place)
            key = f"key{self.count}"
            record = NewRecord(body, b"KEYS\x01" + key.encode(), 0, 0, 1, HOST, HOST, keys=(key,))
            self.opened.batch.put(queue, record)
            assert queue.next_offset == len(self.model[place]) + sum(k == place for k, _ in self.turn) + 1
            self.turn.append((place, body))

    @rule()
    def commit(self) -> None:
        self.opened.batch.commit()
        for key, body in self.turn:
            self.model[key].append(body)
        self.turn.clear()

    @precondition(lambda self: self.turn)
    @rule(error=st.sampled_from([errno.ENOSPC, errno.EIO]), after_bytes=st.sampled_from([0, 1, 90, 300, 2000]))
    def commit_fails(self, error: int, after_bytes: int) -> None:
        self.disk.fails_with, self.disk.after_bytes = error, after_bytes
        try:
            self.opened.batch.commit()
        except StoreError:
            pass
        else:
            raise AssertionError("a commit that could not write must fail")
        finally:
            self.disk.fails_with = None
        self.failed = True
        self.turn.clear()

    @rule()
    def stop_and_start(self) -> None:
        self.opened.close_now()
        self.turn.clear()
        self.store = MessageStore.open(self.config(self.root), disk=self.disk)
        assert self.failed or self.opened.findings == []
        self.failed = False

    @rule()
    def crash_and_start(self) -> None:
        before = self.root
        self.generation += 1
        shutil.copytree(before, self.root)
        self.opened.close_now()
        shutil.rmtree(before)
        self.turn.clear()
        self.store = MessageStore.open(self.config(self.root), disk=self.disk)

    # --- what must hold -------------------------------------------------------------------------
    @invariant()
    def serves_the_model(self) -> None:
        if self.store is None:
            return
        for (topic, queue_id), bodies in self.model.items():
            queue = self.store.queue(topic, queue_id)
            assert queue.max_offset() == len(bodies)
            served: list[bytes] = []
            while len(served) < len(bodies):
                result = self.store.get_message(queue, len(served), 32)
                records = list(iter_records(b"".join(result.chunks), check_crc=True))
                assert records, result.status
                assert [r.queue_offset for r in records] == list(range(len(served), len(served) + len(records)))
                served += [record.body for record in records]
            assert served == bodies

    @invariant()
    def finds_the_last_message_by_its_key(self) -> None:
        if self.store is None:
            return
        for (topic, _), bodies in self.model.items():
            if bodies:
                key = "key" + bodies[-1].partition(b":")[0].decode()
                found = self.store.query(topic, key, 32, 0, 1 << 60).records
                assert [record.body for data in found for record in iter_records(data)] == [bodies[-1]]

    def teardown(self) -> None:
        if self.store is not None:
            self.store.close_now()
        shutil.rmtree(self.base)


StoreMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestStoreAgainstItsModel = StoreMachine.TestCase
