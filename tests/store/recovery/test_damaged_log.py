"""Damage to the log, beside any loss of what is derived from it: every other message is served, now and next time."""

from __future__ import annotations

import errno
import os
import random
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.store.disks import NoFlushDisk
from tests.store.recovery import damaged_stores as stores
from tests.store.recovery.damaged_stores import LOG_DAMAGES, SPOILT, Message, Written, check, missing, open_at

from cometmq.store.errors import StoreFullError
from cometmq.store.message_store import MessageStore
from cometmq.store.recovery.load import Findings

TOLD = {"body", "crc", "magic", "own place", "size, higher", "topic length", "zeroed page", "garbage record"}


@pytest.mark.parametrize("spoilt", SPOILT)
def test_a_damaged_record_costs_no_other(spoilt: str, written: Written, tmp_path: Path) -> None:
    """Each damage at each place, and with each loss of a derived file; of the combinations of all three one in nine."""
    failed: list[str] = []
    cases = [(name, place) for name in LOG_DAMAGES for place in stores.places(written.messages).items()]
    for name, (place, message) in cases[list(SPOILT).index(spoilt) % 9 :: 9]:
        root = written.copy(tmp_path / f"{len(failed)}")
        where = LOG_DAMAGES[name](root, message)
        SPOILT[spoilt](root)
        try:
            findings = check(root, written, stores.overlapping(written.messages, where), spoilt)
            if spoilt == "index gone" and name in TOLD:
                assert any("are damaged; copied to" in line for line in findings) or message is written.messages[-1]
        except Exception as error:
            failed.append(f"{place}, {name}: {type(error).__name__} {str(error)[:150]}")
        else:
            stores.scrub(root)
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("spoilt", ["nothing", "index gone", "position gone", "queues gone", "all gone"])
def test_what_looks_like_the_end_of_a_file_costs_no_record_behind_it(
    spoilt: str, written: Written, tmp_path: Path
) -> None:
    for place, message in stores.places(written.messages).items():
        root = written.copy(tmp_path / place)
        where = stores.false_filler(root, message)
        SPOILT[spoilt](root)
        check(root, written, stores.overlapping(written.messages, where), spoilt)
        stores.scrub(root)


@pytest.mark.parametrize("spoilt", ["index and position gone", "queues zeroed", "all gone"])
@pytest.mark.parametrize("step", [None, 1])
def test_a_wrong_queue_offset_takes_no_place_from_another_message(
    spoilt: str, step: int | None, written: Written, tmp_path: Path
) -> None:
    """Also where messages without a place in a queue, or lost ones, could explain it: 0, or the next one's."""
    for number, message in enumerate(last_of_queues(written)):
        root = written.copy(tmp_path / f"{number}")
        wrong = 0 if step is None else message.place[2] + step
        stores.overwrite(root, message.offset + 20, wrong.to_bytes(8, "big"))
        ahead = max((m for m in written.messages if m.offset < message.offset), key=lambda m: m.offset)
        lost = LOG_DAMAGES["garbage record"](root, ahead)
        SPOILT[spoilt](root)
        damaged = stores.overlapping(written.messages, (message.offset, message.offset + 1), lost)
        check(root, written, damaged, spoilt)
        stores.scrub(root)


def last_of_queues(written: Written) -> list[Message]:
    """The last but one message of each queue, and the last."""
    of_queue = [[m for m in written.messages if m.place[:2] == queue] for queue in stores.QUEUES]
    return [message for messages in of_queue for message in messages[-2:]]


@pytest.mark.parametrize("spoilt", ["nothing", "index gone", "position gone", "queues gone", "all gone"])
def test_two_damages_at_once_cost_no_other(spoilt: str, written: Written, tmp_path: Path) -> None:
    chosen = random.Random(spoilt)
    failed: list[str] = []
    for number in range(10):
        root = written.copy(tmp_path / f"{number}")
        names = chosen.sample([name for name in LOG_DAMAGES if not name.startswith("queue offset")], 2)
        messages = chosen.sample(written.messages, 2)
        ranges = [LOG_DAMAGES[name](root, message) for name, message in zip(names, messages, strict=True)]
        SPOILT[spoilt](root)
        try:
            check(root, written, stores.overlapping(written.messages, *ranges), spoilt)
        except Exception as error:
            failed.append(f"{names} of {[m.place for m in messages]}: {type(error).__name__} {str(error)[:150]}")
        else:
            stores.scrub(root)
    assert not failed, "\n".join(failed)


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_damage_of_any_file_costs_a_message_that_it_does_not_touch(
    data: st.DataObject,
    stopped: Written,
    stopped_files: dict[Path, bytes],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Any bytes anywhere in any file of the store.

    All is drawn before a file is touched: an error of the disk between two draws would look like an unstable strategy.
    """
    file = data.draw(st.sampled_from(list(stopped_files)))
    content = bytearray(stopped_files[file])
    at = data.draw(st.integers(0, len(content) - 1))
    damage = data.draw(st.one_of(st.binary(min_size=1, max_size=40), st.just(bytes(4096)), st.just(b"\xff" * 300)))
    content[at : at + len(damage)] = damage[: len(content) - at]
    root = stopped.copy(tmp_path_factory.mktemp("any") / "store")
    path = root / file
    path.write_bytes(content)
    start = int(path.name) + at if path.parent.name == "commitlog" else -1
    damaged = stores.overlapping(stopped.messages, (start, start + len(damage)))
    check(root, stopped, damaged, "nothing", keys=False)
    stores.scrub(root)


def test_what_is_cut_and_what_is_damaged_is_set_aside(written: Written, tmp_path: Path) -> None:
    """The very bytes, before anything takes their place."""
    root = written.copy(tmp_path / "case")
    message = stores.places(written.messages)["in the middle"]
    where = LOG_DAMAGES["body"](root, message)
    garbage = b"torn" * 20
    stores.overwrite(root, written.end, garbage)
    path = root / "commitlog" / f"{0:020d}"
    damaged = path.read_bytes()[message.offset : message.offset + message.size]
    assert damaged != message.record
    SPOILT["index gone"](root)
    findings = check(root, written, stores.overlapping(written.messages, where), "index gone")
    kept = {path.read_bytes() for path in (root / "comet" / "quarantine").iterdir()}
    assert {damaged, garbage} <= kept
    lines = [line for line in findings if "copied to comet/quarantine/" in line]
    assert any(f"{message.size} bytes at {message.offset} are damaged" in line for line in lines)
    assert any(f"truncated after the last complete record, at {written.end}" in line for line in lines)


def test_a_start_without_room_to_set_aside_cuts_nothing_and_writes_nothing(
    written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It serves what it has; once there is room the tail is set aside, and messages are taken."""
    root = written.copy(tmp_path / "case")
    stores.overwrite(root, written.end, b"torn" * 20)

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Findings, "keep_part", no_room)
        store = open_at(root)
        assert missing(store, written.messages) == set()
        with pytest.raises(StoreFullError):
            stores.send(store, 1000, 1)
        content = (root / "commitlog" / f"{written.end // 4096 * 4096:020d}").read_bytes()
        assert content[written.end % 4096 :].startswith(b"torn" * 20)
    stores.send(store, 2000, 3)
    assert b"torn" * 20 in {path.read_bytes() for path in (root / "comet" / "quarantine").iterdir()}
    store.close_now()


def test_records_that_apache_cut_off_and_wrote_over_stay_cut_off(written: Written, tmp_path: Path) -> None:
    """It leaves them behind the end of its log: whole, in their places, and older than what is in front of them."""
    root = written.copy(tmp_path / "case")
    last = max(written.messages, key=lambda message: message.offset)
    at = written.end
    record = bytearray(last.record)
    record[28:36] = (at + 50).to_bytes(8, "big")
    stored = int.from_bytes(record[56:64], "big")
    record[56:64] = (stored - 1000).to_bytes(8, "big")
    stores.overwrite(root, at, b"x" * 50 + bytes(record))
    (root / "abort").touch()
    for name in ("comet", "index"):
        shutil.rmtree(root / name)
    store = open_at(root)
    assert store.max_physical_offset == at
    assert missing(store, written.messages) == set()
    store.close_now()


@pytest.mark.parametrize("spoilt", SPOILT)
@pytest.mark.parametrize("number", [1, 2])
def test_a_log_file_that_is_missing_between_others_costs_its_own_messages_only(
    spoilt: str, number: int, written: Written, tmp_path: Path
) -> None:
    root = written.copy(tmp_path / "case")
    path = sorted((root / "commitlog").iterdir())[number]
    path.unlink()
    SPOILT[spoilt](root)
    start = int(path.name)
    damaged = stores.overlapping(written.messages, (start, start + stores.LOG_FILE_BYTES))
    findings = check(root, written, damaged, spoilt, keys="index" in spoilt)
    assert f"commitlog/{path.name}: missing; its messages are lost, and the files after it are kept" in findings
    assert path.read_bytes()[4:8] != bytes(4)


def test_a_log_file_far_from_all_others_is_set_aside(written: Written, tmp_path: Path) -> None:
    root = written.copy(tmp_path / "case")
    stray = root / "commitlog" / f"{100 * stores.LOG_FILE_BYTES:020d}"
    stray.write_bytes(b"stray" * 100)
    findings = check(root, written, set(), "nothing")
    assert any(stray.name in line and "moved to comet/quarantine/" in line for line in findings)
    assert not stray.exists()


@pytest.mark.parametrize("name", ["magic", "size, huge", "size, lower", "zeroed page", "garbage record", "a filler"])
def test_a_scan_passes_over_damage_that_no_start_has_read(name: str, stopped: Written, tmp_path: Path) -> None:
    """Deliveries of delayed messages and timers are found behind it, too."""
    for place, message in stores.places(stopped.messages).items():
        root = stopped.copy(tmp_path / place)
        damaged = stores.overlapping(stopped.messages, LOG_DAMAGES[name](root, message))
        store = open_at(root)
        found = {(record.topic, record.queue_id, record.queue_offset) for record in store.scan(0)}
        assert {message.place for message in stopped.messages} - damaged <= found
        store.close_now()


@pytest.mark.parametrize("spoilt", ["nothing", "index gone", "position gone", "queues gone", "all gone"])
def test_a_queue_whose_last_message_is_lost_is_mended_once(spoilt: str, written: Written, tmp_path: Path) -> None:
    """The next start finds nothing to do, also where no message has come since."""
    for number, message in enumerate(last_of_queues(written)):
        root = written.copy(tmp_path / f"{number}")
        LOG_DAMAGES["garbage record"](root, message)
        SPOILT[spoilt](root)
        open_at(root).close_now()
        again = open_at(root)
        assert again.findings == []
        stores.assert_last_units_lead_into_log(again)
        again.close_now()


@pytest.mark.parametrize("spoilt", ["nothing", "position gone", "queues gone"])
def test_a_slave_passes_over_damage_where_its_log_was_saved_or_nothing_is_known(
    spoilt: str, stopped: Written, tmp_path: Path
) -> None:
    """A store that was copied or taken over may be all that is left of it."""
    message = stopped.messages[len(stopped.messages) // 2]
    root = stopped.copy(tmp_path / "case")
    damaged = stores.overlapping(stopped.messages, LOG_DAMAGES["garbage record"](root, message))
    SPOILT[spoilt](root)
    store = MessageStore.open(stores.config_of(root), disk=NoFlushDisk(), is_slave=True)
    assert store.max_physical_offset == stopped.end
    assert missing(store, stopped.messages) == damaged
    store.close_now()


def test_a_slave_puts_no_record_of_its_own_into_its_log(stopped: Written, tmp_path: Path) -> None:
    """A queue whose last message is lost ends where it did all the same."""
    message = last_of_queues(stopped)[1]
    assert message.offset + message.size < stopped.end
    LOG_DAMAGES["garbage record"](stopped.copy(tmp_path / "case"), message)
    SPOILT["queues gone"](tmp_path / "case")
    store = MessageStore.open(stores.config_of(tmp_path / "case"), disk=NoFlushDisk(), is_slave=True)
    assert store.max_physical_offset == stopped.end
    topic, queue_id, offset = message.place
    assert store.queues()[topic][queue_id].max_offset() == offset + 1
    stores.assert_last_units_lead_into_log(store)
    store.close_now()
