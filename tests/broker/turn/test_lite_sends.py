"""The compiled core stores sends to lite topics exactly as Python does."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.broker.turn.side_by_side import Side, SideBySide
from tests.broker.turn.test_plain_sends import send

from cometmq.core import CORE
from cometmq.remoting.bodies import TopicConfig
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand
from cometmq.store.errors import StoreError

pytestmark = pytest.mark.skipif(CORE is None, reason="the compiled core is not installed (make test builds it)")

LITE = "__LITE_TOPIC\x01"
PROPERTIES: dict[str, str] = {
    "plain": "KEYS\x01k1\x02WAIT\x01true\x02TAGS\x01TagA",
    "a": f"{LITE}a\x02KEYS\x01k1\x02WAIT\x01true",
    "b": f"UNIQ_KEY\x01u1\x02{LITE}b\x02",
    "long": f"{LITE}{'c' * 64}",
    "too long": f"{LITE}{'c' * 65}",
    "not ASCII": f"{LITE}ü",
    "a blank": f"{LITE}a b",
    "wrong": f"{LITE}a$b",
    "a comma": f"{LITE}a,b",
    "empty": f"{LITE}\x02a\x01b",
    "no value": "__LITE_TOPIC\x02a\x01b",
    "twice": f"{LITE}a\x02{LITE}b",
    "twice, then empty": f"{LITE}a\x02{LITE}",
    "with a place": f"{LITE}a\x02INNER_MULTI_DISPATCH\x01x\x02INNER_MULTI_QUEUE_OFFSET\x019",
    "sharded": f"{LITE}a\x02__SHARDINGKEY\x01s",
    "does not wait": f"{LITE}a\x02WAIT\x01false",
    "delayed": f"{LITE}a\x02DELAY\x011",
    "half": f"{LITE}a\x02TRAN_MSG\x01true\x02PGROUP\x01g",
    "life time": f"{LITE}a\x02COMETMQ_TTL_MS\x015000",
    "priority": f"{LITE}a\x02_SYS_MSG_PRIORITY_\x013",
    "many properties": f"{LITE}a\x02p\x01" + "v" * 32_600,
    "too many properties": f"{LITE}a\x02p\x01" + "v" * 32_700,
}
LITES = {"attributes": {"message.type": "LITE"}}


def make_parents(both: SideBySide) -> None:
    for side in both.sides:
        for name in ("L", "M"):
            side.broker.topics.put(
                TopicConfig(topic_name=name, read_queue_nums=2, write_queue_nums=2, perm=6, **LITES)  # type: ignore[arg-type]
            )
    warm(both)


def warm(both: SideBySide) -> None:
    """Send plain messages, so that the core knows the queues."""
    for topic in ("L", "M", "T"):
        for queue in ("0", "1"):
            both.receive(0, send(topic=topic, queueId=queue))
            both.end_round()


def state(side: Side) -> Any:
    """Everything that a broker's indexes say."""
    found = {}
    for parent, index in side.broker.lite.indexes.by_parent.items():
        if not index.size:
            continue
        lites = {index.name(n): (index.extent(n), index.first(n), index.last(n)) for n in range(index.size)}
        entries = [(index.log_offset(entry), index.owner(entry)) for entry in range(index.base, index.end)]
        found[parent] = lites, entries, index.unstored
    return found


def equal_states(both: SideBySide) -> None:
    assert state(both.compiled) == state(both.python)


def took(both: SideBySide) -> int:
    """The messages that the core itself has taken in the last call."""
    plain_sends = both.compiled.broker.plain_sends
    assert plain_sends is not None
    return int(plain_sends.core.taken)


async def test_each_kind_of_message_is_stored_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = SideBySide(tmp_path)
    await both.start(monkeypatch)
    make_parents(both)
    taken = []
    for name, properties in PROPERTIES.items():
        for topic in ("L", "T"):
            frame = send(7, topic=topic, properties=properties)
            both.receive(0, frame)
            if topic == "L" and took(both):
                taken.append(name)
            both.end_round(name)
            equal_states(both)
    both.receive(0, send(8, topic="L", batch="true", properties=PROPERTIES["a"]))
    both.end_round("a batch")
    equal_states(both)
    assert taken == ["plain", "a", "b", "long", "empty", "no value", "sharded", "does not wait", "many properties"]
    await both.stop()


ROWS = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.sampled_from(["L", "M", "T"]),
        st.sampled_from([f"lite-{number}" for number in range(5)] + ["", "ü", "a$b"]),
        st.sampled_from(["", "", "", "\x02DELAY\x010", "\x02COMETMQ_TTL_MS\x01900000"]),
        st.booleans(),
    ),
    max_size=40,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS, most=st.integers(2, 9))
def test_any_stream_of_sends_is_stored_and_placed_alike(
    monkeypatch: pytest.MonkeyPatch, rows: list[tuple[int, str, str, str, bool]], most: int
) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as directory:
            both = SideBySide(Path(directory), enable_lmq_quota=True, max_lmq_consume_queue_num=most)
            await both.start(monkeypatch)
            make_parents(both)
            waiting = [b"", b""]
            for number, (connection, topic, name, more, ends) in enumerate(rows):
                waiting[connection] += send(number, topic=topic, properties=f"a\x01b\x02{LITE}{name}{more}")
                if ends:
                    for at, data in enumerate(waiting):
                        both.receive(at, data)
                    waiting = [b"", b""]
                    both.end_round(rows)
                    equal_states(both)
            await both.stop()

    asyncio.run(run())


async def test_a_refused_turn_takes_the_messages_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = SideBySide(tmp_path)
    await both.start(monkeypatch)
    make_parents(both)
    both.receive(0, send(1, topic="L", properties=f"{LITE}a"))
    both.end_round()
    for side in both.sides:
        monkeypatch.setattr(side.broker.store.batch, "commit", refuse)
    for number, name in enumerate("abab"):
        both.receive(0, send(number, topic="L", properties=f"{LITE}{name}"))
        both.receive(0, send(number, topic="M", properties=f"{LITE}{name}"))
    both.end_round()
    for side in both.sides:
        monkeypatch.delattr(side.broker.store.batch, "commit")
    equal_states(both)
    index = both.compiled.broker.lite.indexes.of("L")
    assert [index.extent(index.find(name)) for name in "ab"] == [(0, 1), (0, 0)]
    both.receive(0, send(9, topic="L", properties=f"{LITE}b"))
    both.end_round()
    equal_states(both)
    await both.stop()


def refuse() -> int:
    raise StoreError("the disk is full")


async def test_a_parent_topic_that_is_deleted_and_made_again_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = SideBySide(tmp_path)
    await both.start(monkeypatch)
    for _ in range(2):
        make_parents(both)
        both.receive(0, send(1, topic="L", properties=f"{LITE}a") * 3)
        assert took(both) == 3
        both.end_round()
        equal_states(both)
        index = both.compiled.broker.lite.indexes.of("L")
        assert index.extent(index.find("a")) == (0, 3)
        both.receive(0, RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, 5, ext_fields={"topic": "L"}).encode())
        both.end_round()
    await both.stop()
