"""The table of filters and ``consumerFilter.json``: Apache's form, life and death of entries, limits, bad files."""

from __future__ import annotations

import itertools
import tarfile
import time
from pathlib import Path

import msgspec
import pytest
from tests.broker.conftest import small_config

from cometmq import fastjson
from cometmq.broker.config import BrokerConfig, LiveConfig
from cometmq.broker.limits import FILTER_CHARS_PER_SLICE, MAX_CONSUMER_FILTERS, TABLE_ROWS_PER_SLICE
from cometmq.broker.pull import consumer_filters
from cometmq.broker.pull.consumer_filters import ConsumerFilterManager
from cometmq.filter import Selector, parse_selector
from cometmq.remoting.bodies import SubscriptionData
from cometmq.testing import VirtualClock

DAY_S = 86_400


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config" / "consumerFilter.json"


def opened(path: Path, clock: VirtualClock, config: BrokerConfig | None = None) -> ConsumerFilterManager:
    return ConsumerFilterManager(LiveConfig(config or small_config(path.parent)), path, clock=clock)


def sql(topic: str, expression: str, version: int = 1) -> SubscriptionData:
    return SubscriptionData(topic=topic, sub_string=expression, expression_type="SQL92", sub_version=version)


def from_golden(golden: Path, store: str, path: Path) -> bytes:
    """Put the file that Apache's broker wrote at ``path``."""
    with tarfile.open(golden / "stores" / store / "store.tar.gz") as archive:
        member = archive.extractfile("store/config/consumerFilter.json")
        assert member is not None
        content = member.read()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return content


# --- the file -------------------------------------------------------------------------------------
def test_the_filters_of_a_topic_are_written_in_slices_and_as_in_one_piece(path: Path) -> None:
    """The filters of a hundred topics were one slice, which held the event loop for 40 ms."""
    filters = opened(path, VirtualClock())
    count = 2 * TABLE_ROWS_PER_SLICE + 1
    for number in range(count):
        filters.register(f"Group-{number}", [sql(f"Topic-{number % 2}", f"a = {number}")])
    pieces = list(filters._pieces())
    assert max(piece.count(b'"expression":') for piece in pieces) <= TABLE_ROWS_PER_SLICE
    text = b"".join(pieces)
    assert text == fastjson.dumps_pretty(fastjson.loads(text))
    filters.save_last()
    assert path.read_bytes() == text
    again = opened(path, VirtualClock())
    assert again.load() == []
    assert len(again) == count


def test_apaches_file_is_read_and_written_to_the_byte(golden: Path, path: Path) -> None:
    content = from_golden(golden, "clean", path)
    clock = VirtualClock(start_ms=1_795_231_960_000)
    filters = opened(path, clock)
    assert filters.load() == []
    data = filters.get("GoldPlain", "GoldCSql")
    assert data is not None
    assert (data.expression, data.client_version, data.dead) == ("i > 3 AND s = 'x'", 1795231923663, True)
    path.unlink()
    filters.register("GoldCSql", [sql("New", "a = 1")])
    filters.save_last()
    filters.register("GoldCSql", [])
    clock.advance(1)
    written = path.read_bytes()
    added = written.index(b',\n\t\t"New":{')
    assert written[:added] == content[: content.rindex(b"\n\t}\n}")]
    assert b'"expression":"a = 1"' in written[added:]


def test_groups_that_were_there_when_apaches_broker_was_killed_are_dead_until_they_say_hello(
    golden: Path, path: Path
) -> None:
    from_golden(golden, "killed", path)
    clock = VirtualClock(start_ms=1_795_232_285_900)
    filters = opened(path, clock)
    assert filters.load() == []
    data = filters.get("KillPlain", "KillCSql")
    assert data is not None
    assert data.dead
    assert data.dead_time == data.born_time  # never before its birth
    filters.register("KillCSql", [sql("KillPlain", data.expression, data.client_version)])
    alive = filters.get("KillPlain", "KillCSql")
    assert alive == msgspec.structs.replace(data, dead=False, dead_time=0)


def test_what_was_registered_is_there_after_a_restart(path: Path) -> None:
    clock = VirtualClock()
    filters = opened(path, clock)
    filters.register("g", [sql("T", "a = 'it''s'"), sql("U", "b > 1")])
    filters.save_last()
    clock.advance(100)
    again = opened(path, clock)
    assert again.load() == []
    for topic in ("T", "U"):
        before, after = filters.get(topic, "g"), again.get(topic, "g")
        assert before is not None
        assert after == msgspec.structs.replace(before, dead=True, dead_time=clock.now_ms() - 30_000)


async def test_changes_since_the_file_was_written_are_there_after_a_kill(path: Path) -> None:
    clock = VirtualClock()
    filters = opened(path, clock)
    filters.register("g", [sql("T", "a = 1"), sql("U", "b > 1")])
    filters.register("gone", [sql("T", "a = 1")])
    await filters.save_in_background()
    whole = path.read_bytes()
    filters.unregister("gone")
    filters.register("g", [sql("T", "a = 2", 2), sql("V", "c > 1")])
    await filters.save_in_background()
    filters.register("g", [sql("T", "a = 3", 3), sql("V", "c > 1")])
    clock.advance(DAY_S)
    filters.clean()
    filters.register("late", [sql("T", "a = 1")])
    clock.advance(-DAY_S)
    await filters.save_in_background()
    assert path.read_bytes() == whole
    again = opened(path, clock)
    assert again.load() == []
    assert len(again) == len(filters) == 3
    for topic, group in (("T", "g"), ("V", "g"), ("T", "late")):
        before, after = filters.get(topic, group), again.get(topic, group)
        assert before is not None
        assert after is not None
        assert after.expression == before.expression
    again.save_last()
    assert opened(path, clock).load() == []
    assert not list((path.parent.parent / "comet" / "tables").iterdir())


def test_without_a_change_nothing_is_written(path: Path) -> None:
    filters = opened(path, VirtualClock())
    filters.register("g", [SubscriptionData(topic="T", sub_string="a || b")])
    filters.save_last()
    assert not path.exists()


def test_other_bloom_parameters_begin_anew(path: Path) -> None:
    clock = VirtualClock()
    filters = opened(path, clock)
    filters.register("g", [sql("T", "a = 1")])
    filters.save_last()
    other = opened(path, clock, small_config(path.parent, expect_consumer_num_use_filter=64))
    assert other.load() == [
        "consumerFilter.json: ignored, since the Bloom filter parameters changed; groups will register again"
    ]
    assert len(other) == 0
    other.register("g", [sql("T", "a = 1")])
    data = other.get("T", "g")
    assert data is not None
    assert data.bloom_filter_data is not None
    assert data.bloom_filter_data.bit_num == 216


def test_entries_that_cannot_be_used_are_left_out(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filters = opened(path, VirtualClock())
    filters.register("g", [sql("T", "a = 1"), sql("U", "b = 2")])
    filters.save_last()
    text = path.read_text()
    path.write_text(text.replace("b = 2", "b = = 2").replace('"consumerGroup":"g",', '"consumerGroup":"../g",', 1))
    again = opened(path, VirtualClock())
    (finding,) = again.load()
    assert "'../g'" in finding
    assert again.get("U", "g") is None
    assert "at character 5" in caplog.text
    assert len(again) == 0


def test_a_start_parses_no_expression(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filters = opened(path, VirtualClock())
    for number in range(20):
        filters.register(f"g{number}", [sql("T", f"a = {number}")])
    filters.save_last()
    parsed: list[str] = []

    def noted(expression: str) -> Selector:
        parsed.append(expression)
        return parse_selector(expression)

    monkeypatch.setattr("cometmq.broker.pull.consumer_filters.parse_selector", noted)
    again = opened(path, VirtualClock())
    assert again.load() == []
    again.save_last()
    assert parsed == []
    assert again.get("T", "g3") is not None
    assert again.get("T", "g3") is not None
    assert parsed == ["a = 3"]


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"filterDataByTopic":{"T":3}}'])
def test_a_damaged_file_is_set_aside(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    (finding,) = opened(path, VirtualClock()).load()
    aside = path.parent.parent / finding.rpartition("moved to ")[2]
    assert aside.read_bytes() == content
    assert not path.exists()


def test_the_bak_file_takes_its_place(path: Path) -> None:
    filters = opened(path, VirtualClock())
    for version in (1, 2):
        filters.register("g", [sql("T", "a = 1", version)])
        filters.save_last()
    path.write_bytes(b"{")
    again = opened(path, VirtualClock())
    damaged, copy = again.load()
    assert "moved to comet/quarantine" in damaged
    assert "using config/consumerFilter.json.bak" in copy
    data = again.get("T", "g")
    assert data is not None
    assert data.client_version == 1


# --- life and death -------------------------------------------------------------------------------
def test_a_filter_dies_with_its_group_and_is_removed_a_day_later(path: Path) -> None:
    clock = VirtualClock()
    filters = opened(path, clock)
    filters.register("g", [sql("T", "a = 1")])
    filters.unregister("g")
    clock.advance(DAY_S - 1)
    filters.save_last()
    assert len(filters) == 1
    clock.advance(1)
    filters.save_last()
    assert len(filters) == 0
    assert b'"filterDataByTopic":{}' in path.read_bytes()


def test_a_filter_dies_when_its_topic_is_subscribed_no_more_and_lives_again(path: Path) -> None:
    clock = VirtualClock()
    filters = opened(path, clock)
    filters.register("g", [sql("T", "a = 1"), sql("U", "a = 1")])
    filters.register("g", [sql("U", "a = 1")])
    assert [data.dead for topic in "TU" if (data := filters.get(topic, "g")) is not None] == [True, False]
    filters.register("g", [sql("T", "a = 1"), sql("U", "a = 1")])
    assert [data.dead for topic in "TU" if (data := filters.get(topic, "g")) is not None] == [False, False]


def test_a_new_version_of_the_same_expression_keeps_its_birth(path: Path) -> None:
    clock = VirtualClock()
    filters = opened(path, clock)
    filters.register("g", [sql("T", "a = 1", 1)])
    born = clock.now_ms()
    clock.advance(5)
    filters.register("g", [sql("T", "a = 1", 2)])
    data = filters.get("T", "g")
    assert data is not None
    assert (data.born_time, data.client_version) == (born, 2)
    filters.register("g", [sql("T", "a = 2", 3)])
    data = filters.get("T", "g")
    assert data is not None
    assert (data.born_time, data.client_version) == (clock.now_ms(), 3)


# --- limits ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(("limit", "most"), [("MAX_CONSUMER_FILTERS", 3), ("MAX_CONSUMER_FILTER_CHARS", 15)])
def test_a_full_table_drops_the_longest_dead_and_never_the_living(
    path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(consumer_filters, limit, most)
    clock = VirtualClock()
    filters = opened(path, clock)
    for group in ("old", "older", "alive"):
        filters.register(group, [sql("T", "a = 1")])
    filters.unregister("older")
    clock.advance(1)
    filters.unregister("old")
    filters.register("new", [sql("T", "a = 1")])
    assert [group for group in ("old", "older", "alive", "new") if filters.get("T", group)] == ["old", "alive", "new"]
    for group in ("newer", "newest"):
        filters.register(group, [sql("T", "a = 1")])
    assert [group for group in ("old", "alive", "new", "newer", "newest") if filters.get("T", group)] == [
        "alive",
        "new",
        "newer",
    ]


@pytest.mark.parametrize("are_dead", [False, True])
def test_a_full_table_is_not_searched_for_each_new_filter(path: Path, are_dead: bool) -> None:
    """A heartbeat may have 1,000 groups: it took 0.9 s where all 10,000 lived, and 1.3 s where all were dead."""
    filters = opened(path, VirtualClock())
    for number in range(MAX_CONSUMER_FILTERS):
        filters.register(f"g{number}", [sql("T", "a > 5")])
        if are_dead:
            filters.unregister(f"g{number}")
    before = time.thread_time()
    for number in range(1_000):
        filters.register(f"new{number}", [sql("T", "a > 5")])
    assert time.thread_time() - before < 0.2
    assert len(filters) == MAX_CONSUMER_FILTERS
    assert (filters.get("T", "g0") is None) == (filters.get("T", "new0") is not None) == are_dead


def test_expressions_of_a_heartbeat_are_compiled_in_slices(path: Path) -> None:
    filters = opened(path, VirtualClock())
    expression = " OR ".join(f"a = '{number}'" for number in range(70))
    count = 40
    subscriptions = [sql(f"T{number}", expression) for number in range(count)]
    known = [0, *(len(filters) for _ in filters.register_in_slices("g", subscriptions)), count]
    assert len(filters) == count
    most = FILTER_CHARS_PER_SLICE // len(expression) + 1
    assert max(after - before for before, after in itertools.pairwise(known)) <= most < count
