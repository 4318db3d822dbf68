"""Units from before a start are compared with their records at each read, by the compiled core exactly as by Python."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.store.conftest import HOST, StoreBench, put
from tests.store.recovery.damaged_stores import LOG_DAMAGES, Written, flip, open_at, overwrite, places, scrub

from cometmq.core import CORE
from cometmq.message.ids import tags_code
from cometmq.message.record import MESSAGE_MAGIC_V2, encode_record
from cometmq.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_PREPARED
from cometmq.store.message_store import ConsumeQueue, MessageStore
from cometmq.store.queue import get_message
from cometmq.store.queue.consume_queue import BLANK_SIZE, UNIT, QueueFiles
from cometmq.store.queue.units import points_to_record

pytestmark = pytest.mark.skipif(CORE is None, reason="the compiled core is not installed")

V6: Final = bytes(15) + b"\x01" + (20911).to_bytes(4, "big")
BASE: Final = 1 << 32
COUNT: Final = 24


@contextmanager
def reading(core: Any) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(get_message, "CORE", core)
        yield


@pytest.mark.parametrize("killed", [False, True])
def test_after_a_start_small_records_between_others_are_one_copy_as_before(
    bench: StoreBench, tmp_path: Path, killed: bool
) -> None:
    sizes: dict[str, Any] = {"mapped_file_size_commit_log": 1 << 22, "mapped_file_size_consume_queue": 20_000}
    store = bench.open(**sizes)
    for _ in range(400):
        for queue_id in (0, 1):
            put(store, "TopicTest", queue_id, b"x" * 128, tag="t")
    store.batch.commit()
    before = store.get_message(store.queue("TopicTest", 1), 0, 400)
    if killed:
        again = bench.crashed_copy(tmp_path / "killed").open(**sizes)
    else:
        store.close_now()
        again = bench.open(**sizes)
    for tags in (None, frozenset([tags_code("t")])):
        after = again.get_message(again.queue("TopicTest", 1), 0, 400, tag_codes=tags)
        assert (len(after.chunks), after.count, after.chunks) == (1, 400, before.chunks)
    again.close_now()


# --- one unit and its record ---------------------------------------------------------------------
def log_of_all_forms(topic: str, rest: int) -> tuple[bytearray, list[tuple[int, int]]]:
    """Records of all forms, one behind the other, with ``rest`` zeros behind them; log offset and size of each."""
    log, found = bytearray(), []
    for number in range(COUNT):
        record = bytearray(
            encode_record(
                topic=topic,
                queue_id=3,
                queue_offset=number,
                physical_offset=BASE + len(log),
                body=bytes(number % 5 * 9),
                properties_text=("", "TAGS\x01t", "k\x01\0", "k\x01\0\x02")[number % 4],
                sys_flag=(0, TRANSACTION_COMMIT, 0, TRANSACTION_PREPARED)[number % 7 % 4],
                born_timestamp=1,
                born_host=(HOST, V6)[number % 3 == 1],
                store_timestamp=2,
                store_host=(HOST, V6)[number % 5 == 1],
            )
        )
        if number % 6 == 5:  # RocketMQ 5: two bytes for the topic's length
            at = record.rindex(bytes((len(topic.encode()),)) + topic.encode())
            record[at:at] = b"\0"
            record[:8] = len(record).to_bytes(4, "big") + MESSAGE_MAGIC_V2.to_bytes(4, "big", signed=True)
        found.append((BASE + len(log), len(record)))
        log += record
    return log + bytes(rest), found


damages = st.lists(
    st.one_of(
        st.tuples(st.integers(0, COUNT - 1), st.integers(-12, 110), st.integers(1, 255)),
        st.tuples(st.integers(0, COUNT - 1), st.sampled_from([0, 7, 15, 27, 35, 36, 39, 84, 87, -1]), st.just(0x80)),
    ),
    max_size=6,
)


@settings(max_examples=300, deadline=None)
@given(
    topic=st.sampled_from(["T", "Topic-\u4e2d\u6587", "t" * 127]),
    rest=st.integers(0, 12),
    damaged=damages,
    units=st.lists(
        st.tuples(
            st.integers(0, COUNT - 1),
            st.one_of(st.integers(-300, 300), st.integers(-(2**63) + BASE, 2**63 - 1 - 2 * BASE)),
            st.one_of(st.integers(-300, 300), st.sampled_from([BLANK_SIZE, -(2**31)])),
        ),
        max_size=4,
        unique_by=lambda unit: unit[0],
    ),
    known=st.one_of(st.just(2**63 - 1), st.integers(0, COUNT)),
    cut=st.integers(0, 400),
    low=st.integers(0, 400),
)
def test_the_core_compares_each_unit_as_python_does(
    topic: str,
    rest: int,
    damaged: list[tuple[int, int, int]],
    units: list[tuple[int, int, int]],
    known: int,
    cut: int,
    low: int,
) -> None:
    """Records, units and the log's ends are damaged at random; a unit is read by the core if it is sound for Python."""
    queue = ConsumeQueue(topic, 3, 2_000, QueueFiles("", 1))
    log, found = log_of_all_forms(topic, rest)
    for number, at, change in damaged:
        log[(found[number][0] - BASE + at) % len(log)] ^= change
    for number, offset_change, size_change in units:
        start, size = found[number]
        found[number] = start + offset_change, size_change if abs(size_change) > 300 else size + size_change
    view = memoryview(bytes(log))
    first, position = BASE + low, BASE + len(log) - cut
    sound = []
    for number, (start, size) in enumerate(found):
        is_there = first <= start and 0 < size != BLANK_SIZE and start + size <= position
        sound.append(is_there and (number >= known or points_to_record(view, start - BASE, start, size, queue, number)))
        of_core = core_records(view, topic, found[number : number + 1], number, known, (first, position))
        assert (of_core is not None) == sound[-1], number
        if of_core is not None:
            assert of_core == (None, [(start - BASE, start + size - BASE)], 1, size, 1, start)
    for copied_bytes in (0, 1 << 20):
        all_of_core = core_records(view, topic, found, 0, known, (first, position), copied_bytes)
        assert (all_of_core is not None) == all(sound)
        if all_of_core is None:
            continue
        copied, runs, count, size, looked_at, _ = all_of_core
        assert (copied is None) == (copied_bytes == 0) == bool(runs)
        chunks = [view[begin:end] for begin, end in runs] if copied is None else [copied]
        assert b"".join(chunks) == b"".join(view[at - BASE : at - BASE + length] for at, length in found)
        assert (count, size, looked_at) == (COUNT, sum(length for _, length in found), COUNT)


def core_records(
    view: memoryview,
    topic: str,
    units: list[tuple[int, int]],
    offset: int,
    known: int,
    ends: tuple[int, int],
    copied: int = 0,
) -> Any:
    raw = b"".join(UNIT.pack(*unit, 0) for unit in units)
    most = 1 << 40
    return CORE.records(raw, None, (topic, 3, offset, known), (view, BASE, *ends), (most, most, copied))


# --- a store ---------------------------------------------------------------------------------------
def unit_damage(at: int, bit: int) -> Any:
    def damage(root: Path, place: tuple[str, int, int]) -> None:
        topic, queue_id, offset = place
        path = root / "consumequeue" / topic / str(queue_id) / f"{offset * 20 // 200 * 200:020d}"
        content = bytearray(path.read_bytes())
        content[offset * 20 % 200 + at] ^= 1 << bit
        path.write_bytes(content)

    return damage


UNIT_DAMAGES = {f"{at}, {bit}": unit_damage(at, bit) for at, bit in ((0, 7), (3, 0), (7, 2), (8, 6), (8, 7), (11, 1))}


def everything_read(store: MessageStore) -> list[Any]:
    """All answers to consumers that begin at each offset, with different limits and tags."""
    found: list[Any] = []
    for topic, queues in sorted(store.queues().items()):
        for queue_id, queue in sorted(queues.items()):
            for offset in range(queue.min_offset(), queue.max_offset() + 1):
                for most, most_bytes, tags in ((1, 1, None), (5, 700, None), (32, 1 << 20, None), (32, 1 << 20, "t")):
                    codes = None if tags is None else frozenset([tags_code(tags)])
                    got = store.get_message(queue, offset, most, max_bytes=most_bytes, tag_codes=codes)
                    found.append(
                        (topic, queue_id, offset, most, got.status, got.next_begin_offset, got.count, got.size)
                    )
                    found.append((got.min_offset, got.max_offset, got.log_offset, b"".join(got.chunks)))
    return found


def assert_read_alike(written: Written, at: Path, damage: Any) -> None:
    """Damage two open stores alike; one is read with the core and one in Python, and mended alike."""
    found, files = [], []
    for core in (CORE, None):
        root = written.copy(at / ("core" if core else "python"))
        store = open_at(root)
        damage(root)
        with reading(core):
            found += [everything_read(store), everything_read(store)]
        store.close_now()
        queues = sorted(path for path in (root / "consumequeue").rglob("*") if path.is_file())
        files.append({path.relative_to(root): path.read_bytes() for path in queues})
        scrub(root)
    assert found[0] == found[2]
    assert found[1] == found[3]
    assert files[0] == files[1]


@pytest.mark.parametrize("name", LOG_DAMAGES)
def test_a_record_damaged_since_the_start_is_read_as_python_reads_it(
    name: str, stopped: Written, tmp_path: Path
) -> None:
    for number, message in enumerate(places(stopped.messages).values()):
        assert_read_alike(
            stopped, tmp_path / f"{number}", lambda root, message=message: LOG_DAMAGES[name](root, message)
        )


@pytest.mark.parametrize("name", UNIT_DAMAGES)
def test_a_unit_damaged_since_the_start_is_read_and_mended_as_in_python(
    name: str, stopped: Written, tmp_path: Path
) -> None:
    for number, message in enumerate(places(stopped.messages).values()):
        assert_read_alike(
            stopped, tmp_path / f"{number}", lambda root, message=message: UNIT_DAMAGES[name](root, message.place)
        )


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_stores_damaged_at_random_are_read_as_python_reads_them(
    seed: int, written: Written, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def damage(root: Path) -> None:
        chance = random.Random(seed)
        for _ in range(chance.randint(1, 6)):
            message = chance.choice(written.messages)
            kind = chance.randrange(4)
            if kind == 0:
                flip(root, message.offset + chance.randrange(message.size), chance.randrange(8))
            elif kind == 1:
                overwrite(root, message.offset + chance.randrange(message.size), chance.randbytes(8))
            else:
                unit_damage(chance.randrange(20), chance.randrange(8))(root, message.place)

    assert_read_alike(written, tmp_path_factory.mktemp("case"), damage)
