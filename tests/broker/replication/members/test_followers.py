"""A member's HA port: who may follow, which reports count, and what hostile bytes do."""

from __future__ import annotations

import asyncio
import random
import struct
from pathlib import Path

import pytest
from tests.broker.access.test_access import BILLING, OPERATORS, make_topics, send
from tests.broker.conftest import ConnectTo
from tests.broker.replication.members.conftest import FILE_BYTES, Master, StartMaster
from tests.broker.replication.members.raw import RawFollower, sign_in
from tests.broker.replication.slave import RawSlave, log_of
from tests.broker.replication.test_access import write_accounts

from cometmq.broker.controller import Broker
from cometmq.broker.failover.document import Member
from cometmq.broker.limits import (
    MAX_FAILOVER_MEMBERS,
    MAX_LEARNERS,
    MAX_SET_CONNECTIONS,
    MAX_SIGN_IN_BYTES,
    MAX_SLAVES,
    SIGN_IN_SECONDS,
)
from cometmq.broker.replication.frames import SIGN_IN
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.signing import Stamps
from cometmq.testing import VirtualClock, settle

SIGNED_IN = ("signed in", "f#3", "127.0.0.1:1", "127.0.0.1:2")


# --- following -----------------------------------------------------------------------------------
async def test_a_follower_gets_the_epochs_then_the_log_with_what_is_confirmed(
    master: Master, connect_to: ConnectTo
) -> None:
    marker = master.end
    wire = await connect_to(master.broker)
    await wire.send("T", b"first")
    master.side.confirmed = marker
    follower = await RawFollower.connect(master.broker)
    await follower.write(sign_in())
    assert follower.answer.opaque == 77
    assert follower.answer.is_response
    assert follower.answer.ext_fields == {"epoch": "1"}
    assert follower.epochs == {"epoch": 1, "epochs": [[1, 0]], "begin": 0, "end": master.end, "heartbeatMs": 1000}
    assert master.side.events == [], "it counts once it has compared its log"
    assert not follower.transfers
    await follower.report(0)
    assert master.side.events == [SIGNED_IN]
    assert follower.log == log_of(master.broker, 0)
    assert set(follower.confirmed) == {marker}
    await follower.report(marker)
    await wire.send("T", b"second")
    await follower.report(master.end)
    assert master.side.events[1:] == [("reported", "f#3", marker), ("reported", "f#3", master.end)]
    assert follower.log == log_of(master.broker, 0)


async def test_a_follower_with_an_empty_log_gets_the_first_file_and_not_the_last(
    master: Master, connect_to: ConnectTo
) -> None:
    """As a slave that was made by hand it would begin with the last file."""
    wire = await connect_to(master.broker)
    while master.end < 2 * FILE_BYTES:
        await wire.send("T", random.randbytes(9000))
    follower = await RawFollower.signed_in(master.broker, 0)
    await settle()
    assert follower.log == log_of(master.broker, 0)


async def test_a_request_and_a_report_in_one_piece_are_two(master: Master) -> None:
    """The first number is where to begin, the second the end that counts."""
    follower = await RawFollower.connect(master.broker)
    await follower.write(sign_in())
    await follower.write(struct.pack(">qq", master.end, 5))
    assert master.side.events == [SIGNED_IN, ("reported", "f#3", 5)]
    await settle()
    assert not follower.transfers, "nothing is sent twice"
    assert not follower.closed


async def test_the_first_offset_does_not_count_as_a_report(master: Master) -> None:
    await RawFollower.signed_in(master.broker, master.end)
    assert master.side.events == [SIGNED_IN]


async def test_bytes_may_come_one_by_one(master: Master) -> None:
    follower = await RawFollower.connect(master.broker)
    for byte in sign_in() + struct.pack(">qq", 0, master.end):
        await follower.write(bytes([byte]))
    assert master.side.events == [SIGNED_IN, ("reported", "f#3", master.end)]
    assert follower.log == log_of(master.broker, 0)


async def test_a_higher_confirmed_end_is_told_soon_and_with_each_heartbeat(master: Master, clock: VirtualClock) -> None:
    follower = await RawFollower.signed_in(master.broker, master.end)
    for confirmed in (10, 20, 30):
        master.side.confirmed = confirmed
        master.broker.ha.confirmed()
    await clock.run_for(0.06)
    assert follower.confirmed == [30], "three changes are one frame"
    master.broker.ha.confirmed()
    await clock.run_for(0.06)
    assert follower.confirmed == [30], "nothing new, no frame"
    await follower.report(master.end)
    await clock.run_for(2)
    assert follower.confirmed == [30, 30, 30]
    assert {transfer.body for transfer in follower.transfers} == {b""}


# --- refusals ------------------------------------------------------------------------------------
REFUSED: list[tuple[dict[str, str | None], str]] = [
    ({"setId": "ffffffff"}, "its own failoverPrefix"),
    ({"member": "m#9"}, "its own name with failoverMember"),
    ({"logFileBytes": "1073741824"}, "mappedFileSizeCommitLog to the master's value"),
    ({"member": "no member"}, "not a member"),
    ({"member": None}, "malformed"),
    ({"member": "f#-1"}, "not a member"),
    ({"member": "f#99999999999999999999"}, "not a member"),
    ({"member": "x" * 200 + "#1"}, "not a member"),
    ({"epoch": "0"}, "outside its range"),
    ({"epoch": "-7"}, "outside its range"),
    ({"epoch": "9" * 30}, "malformed"),
    ({"epoch": "one"}, "malformed"),
    ({"setId": None}, "malformed"),
    ({"heartbeatMs": None}, "malformed"),
    ({"heartbeatMs": "0"}, "interval of heartbeats"),
    ({"heartbeatMs": "3600001"}, "interval of heartbeats"),
    ({"address": "nowhere"}, "host:port"),
    ({"haAddress": "h:99999"}, "host:port"),
    ({"haAddress": f"{'h' * 300}:1"}, "300 characters"),
    ({"process": "p" * 4000}, "outside its range"),
]


@pytest.mark.parametrize(("changes", "step"), REFUSED)
async def test_a_member_that_must_not_follow_hears_why(
    master: Master, changes: dict[str, str | None], step: str
) -> None:
    follower = await RawFollower.connect(master.broker)
    await follower.write(sign_in(None, None, **changes))
    await settle()
    assert follower.answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert step in (follower.answer.remark or "")
    assert follower.closed
    assert master.side.events == [], "also no epoch of a member that does not belong here"


async def test_nothing_of_a_refused_member_counts_even_in_one_piece(master: Master) -> None:
    follower = await RawFollower.connect(master.broker)
    await follower.write(sign_in(setId="ffffffff") + struct.pack(">qq", 0, master.end))
    assert follower.closed
    assert not follower.transfers
    assert master.side.events == []


async def test_a_higher_epoch_is_seen_and_a_lower_one_is_told(master: Master) -> None:
    master.side.enter(5)
    for epoch, seen in ((6, [("epoch seen", 6)]), (4, [])):
        follower = await RawFollower.connect(master.broker)
        await follower.write(sign_in(epoch=str(epoch)))
        assert follower.answer.ext_fields == {"epoch": "5"}
        assert master.side.events == seen
        master.side.events.clear()


async def test_a_member_that_is_no_master_tells_the_highest_epoch_that_it_knows(master: Master) -> None:
    master.side.enter(0)
    master.side.known_epoch = 9
    follower = await RawFollower.connect(master.broker)
    await follower.write(sign_in())
    assert follower.answer.ext_fields == {"epoch": "9"}
    assert "does not serve as master" in (follower.answer.remark or "")


async def test_a_broker_without_failover_has_no_followers(broker: Broker) -> None:
    follower = await RawFollower.connect(broker)
    await follower.write(sign_in())
    assert "set failover in its configuration" in (follower.answer.remark or "")
    assert follower.closed


async def test_a_refusal_is_logged_once_while_it_recurs(master: Master, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        follower = await RawFollower.connect(master.broker)
        await follower.write(sign_in(setId="ffffffff"))
    assert caplog.text.count("refusing the member") == 1


# --- hostile bytes -------------------------------------------------------------------------------
def _other_code() -> bytes:
    return SIGN_IN + RemotingCommand(RequestCode.SEND_MESSAGE, ext_fields={"haReport": "0"}).encode()


@pytest.mark.parametrize(
    "hostile",
    [
        SIGN_IN + struct.pack(">i", MAX_SIGN_IN_BYTES + 1),
        SIGN_IN + struct.pack(">i", -1),
        SIGN_IN + b"\0\0\0\x08\0\0\0\x04nope",
        SIGN_IN + b"\0\0\0\x08\0\0\xff\xffnope",
        sign_in() + struct.pack(">q", -2),
        sign_in() + struct.pack(">q", 2**62),
        sign_in() + struct.pack(">qq", 0, 2**62),
        sign_in() + SIGN_IN,
        struct.pack(">q", -1),
    ],
)
async def test_hostile_bytes_end_the_connection_and_count_for_nothing(master: Master, hostile: bytes) -> None:
    follower = await RawFollower.connect(master.broker)
    await follower.write(hostile)
    await settle()
    assert follower.closed
    assert not [event for event in master.side.events if event[0] == "reported"]
    again = await RawFollower.signed_in(master.broker, 0)
    assert again.log == log_of(master.broker, 0), "others are served"


async def test_a_report_beyond_what_was_sent_is_refused(master: Master) -> None:
    follower = await RawFollower.signed_in(master.broker, 0)
    await follower.report(master.end + 1)
    assert follower.closed
    assert master.side.events == [SIGNED_IN, ("lost", "f#3")]


async def test_copied_tables_that_nobody_asked_for_change_nothing(master: Master) -> None:
    follower = await RawFollower.signed_in(master.broker, 0)
    await follower.report(-1)
    await follower.report(master.end)
    assert master.side.events == [SIGNED_IN, ("reported", "f#3", master.end)]


# --- connections ---------------------------------------------------------------------------------
async def test_of_two_connections_of_a_replica_the_newest_counts(master: Master) -> None:
    """Also of another generation of it: only one process can have the disk."""
    first = await RawFollower.signed_in(master.broker, 0)
    second = await RawFollower.signed_in(master.broker, 0, member="f#4")
    await settle()
    assert first.closed
    await second.report(master.end)
    assert master.side.events == [
        SIGNED_IN,
        ("signed in", "f#4", "127.0.0.1:1", "127.0.0.1:2"),
        ("reported", "f#4", master.end),
    ], "the first one is not lost: the replica is there"
    second.close()
    await settle()
    assert master.side.events[3:] == [("lost", "f#4")]


async def test_two_processes_with_one_name_are_named_in_the_log(
    master: Master, caplog: pytest.LogCaptureFixture
) -> None:
    await RawFollower.signed_in(master.broker, 0)
    await RawFollower.signed_in(master.broker, 0)
    assert "failoverMember" not in caplog.text
    await RawFollower.signed_in(master.broker, 0, process="p2")
    assert "two members are called f; the other one is at 127.0.0.1:1" in caplog.text


async def test_a_follower_that_signs_in_and_says_nothing_more_does_not_replace_another(master: Master) -> None:
    first = await RawFollower.signed_in(master.broker, 0)
    second = await RawFollower.connect(master.broker)
    await second.write(sign_in())
    assert not first.closed
    second.close()
    await settle()
    assert master.side.events == [SIGNED_IN]


async def test_a_silent_follower_is_disconnected_after_three_heartbeats(master: Master, clock: VirtualClock) -> None:
    silent = await RawFollower.signed_in(master.broker, 0)
    other = await RawFollower.signed_in(master.broker, 0, member="g#1")
    for _ in range(4):
        await other.report(master.end)
        await clock.run_for(1)
    assert silent.closed
    assert not other.closed
    assert ("lost", "f#3") in master.side.events
    assert ("lost", "g#1") not in master.side.events


async def test_a_follower_with_a_longer_lease_may_be_silent_for_longer(master: Master, clock: VirtualClock) -> None:
    """As while failoverLeaseMs is changed on one member after the other."""
    slow = await RawFollower.signed_in(master.broker, 0, heartbeatMs="4000")
    await clock.run_for(11.9)
    assert not slow.closed
    await clock.run_for(1.2)
    assert slow.closed


async def test_a_pause_of_this_process_disconnects_nobody(master: Master, clock: VirtualClock) -> None:
    follower = await RawFollower.signed_in(master.broker, 0)
    clock._elapsed += 60  # the process was stopped: alarms ring late, and reports wait to be read
    await clock.run_for(0.5)
    await follower.report(master.end)
    await clock.run_for(2)
    assert not follower.closed
    assert ("lost", "f#3") not in master.side.events


async def test_a_connection_ends_with_its_epoch(master: Master) -> None:
    follower = await RawFollower.signed_in(master.broker, 0)
    master.side.enter(2)
    await follower.report(master.end)
    assert follower.closed
    late = await RawFollower.connect(master.broker)
    await late.write(sign_in(epoch="2"))
    master.side.enter(3)
    await late.report(0)
    assert late.closed
    assert [event for event in master.side.events if event[0] != "lost"] == [SIGNED_IN]


async def test_a_member_that_leaves_the_lead_closes_followers_without_waiting(
    master: Master, clock: VirtualClock, connect_to: ConnectTo
) -> None:
    follower = await RawFollower.signed_in(master.broker, 0)
    wire = await connect_to(master.broker)
    await wire.send("T", random.randbytes(100))
    before = clock.monotonic()
    await master.broker.ha.stop()
    assert clock.monotonic() == before
    assert follower.closed


# --- learners ------------------------------------------------------------------------------------
async def test_a_learner_gets_only_what_is_confirmed_and_never_counts(master: Master, connect_to: ConnectTo) -> None:
    """It cannot cut its log."""
    master.side.confirmed = master.end
    learner = await RawSlave.connect(master.broker)
    await learner.report(0)
    wire = await connect_to(master.broker)
    await wire.send("T", b"not confirmed")
    assert learner.end == master.side.confirmed
    await learner.report(learner.end)
    master.side.confirmed = middle = (master.side.confirmed + master.end) // 2
    master.broker.ha.confirmed()
    await settle()
    assert learner.end == middle, "not a byte more, also within a record"
    master.side.confirmed = master.end
    master.broker.ha.confirmed()
    await settle()
    assert learner.log == log_of(master.broker, 0)
    await learner.report(learner.end)
    assert master.side.events == []
    status = next(iter(master.broker.ha.slaves))
    assert not status.is_in_sync


async def test_a_learner_beyond_what_is_confirmed_waits(master: Master, connect_to: ConnectTo) -> None:
    """A master that has just been elected knows less about what was confirmed than it may have."""
    learner = await RawSlave.connect(master.broker)
    await learner.report(master.end)
    assert not learner.closed
    wire = await connect_to(master.broker)
    await wire.send("T", b"more")
    assert not learner.bodies
    master.side.confirmed = master.end
    master.broker.ha.confirmed()
    await settle()
    assert learner.end == master.end


async def test_learners_leave_room_for_members(master: Master) -> None:
    learners = [await RawSlave.connect(master.broker) for _ in range(MAX_SLAVES)]
    for learner in learners:
        await learner.report(0)
    assert sum(not learner.closed for learner in learners) == MAX_LEARNERS == MAX_SLAVES - MAX_FAILOVER_MEMBERS
    await RawFollower.signed_in(master.broker, 0)
    assert SIGNED_IN in master.side.events
    for learner in learners:
        learner.close()


async def test_members_that_the_document_names_always_get_in(master: Master) -> None:
    strangers = [await RawSlave.connect(master.broker) for _ in range(10)]
    for stranger in strangers:
        await stranger.report(0)
    names = [f"x{number}#1" for number in range(MAX_LEARNERS - 10)]
    invented = [await RawFollower.signed_in(master.broker, 0, member=name) for name in names]
    refused = await RawFollower.connect(master.broker)
    await refused.write(sign_in(member="late#1"))
    assert refused.answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "48 slaves that the set's document does not name are already connected" in (refused.answer.remark or "")
    kept: list[RawSlave | RawFollower] = [*strangers, *invented]
    silent = [await RawFollower.connect(master.broker) for _ in range(200)]  # they make room for each other
    assert not any(one.closed for one in kept)
    kept.append(await RawFollower.signed_in(master.broker, 0))
    assert SIGNED_IN in master.side.events
    silent += [await RawFollower.connect(master.broker) for _ in range(200)]
    assert not any(one.closed for one in kept)
    assert len(master.broker.ha.slaves) + len(master.broker.ha._openings) <= MAX_SET_CONNECTIONS
    for one in (*kept, *silent):
        one.close()


@pytest.mark.parametrize("first", [b"", b"\xff", sign_in()[:-1]])
async def test_a_connection_that_does_not_sign_in_is_closed_after_seconds(
    master: Master, clock: VirtualClock, first: bytes
) -> None:
    follower = await RawFollower.connect(master.broker)
    for at in range(len(first)):
        await follower.write(first[at : at + 1])
        await clock.run_for(0.02)
    assert not follower.closed
    await clock.run_for(SIGN_IN_SECONDS + 2)
    assert follower.closed


# --- accounts ------------------------------------------------------------------------------------
async def test_a_member_signs_in_with_an_account_once(
    start_master: StartMaster, tmp_path: Path, clock: VirtualClock, connect_to: ConnectTo
) -> None:
    master = await start_master(**write_accounts(tmp_path))
    wire = await connect_to(master.broker)
    await make_topics(wire, "Orders")
    assert (await send(wire, BILLING, "Orders")).code == 0
    stamps = Stamps(clock.now_ms)
    good = sign_in(OPERATORS, stamps.next())
    for bad in (
        sign_in(),
        sign_in(BILLING, stamps.next()),
        sign_in(OPERATORS, None),
        sign_in(OPERATORS, stamps.next(), haReport=None),
        good.replace(b'"member":"f#3"', b'"member":"f#4"'),
    ):
        follower = await RawFollower.connect(master.broker)
        await follower.write(bad)
        await settle()
        assert follower.answer.code == ResponseCode.SERVICE_NOT_AVAILABLE, bad
        assert "may not copy the log" in (follower.answer.remark or "")
        assert follower.closed
    follower = await RawFollower.connect(master.broker)
    await follower.write(good)
    assert follower.answer.code == ResponseCode.SUCCESS
    again = await RawFollower.connect(master.broker)
    await again.write(good)  # overheard and sent again
    assert again.answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert master.side.events == []


# --- tables --------------------------------------------------------------------------------------
class Change:
    """A change of a table that waits for followers."""

    def __init__(self, master: Master) -> None:
        self.answers: list[Exception | None] = []
        assert master.broker.ha.followers is not None
        master.broker.ha.followers.tables.wait(self.answers.append)


async def test_a_change_of_a_table_is_answered_once_each_counted_member_has_copied_it(master: Master) -> None:
    one, two = Member("f", 3), Member("g", 1)
    assert Change(master).answers == [None], "nobody else counts"
    first = await RawFollower.signed_in(master.broker, master.end)
    second = await RawFollower.signed_in(master.broker, master.end, member="g#1")
    learner = await RawFollower.signed_in(master.broker, master.end, member="h#1")
    for follower in (first, second, learner):
        assert follower.asks == 1
        await follower.report(-1)
    master.side.counted_others = frozenset({one, two})
    change = Change(master)
    await settle()
    await first.report(-1)
    assert change.answers == []
    later = Change(master)
    await second.report(-1)
    await settle()
    assert change.answers == [None]
    assert later.answers == [], "the second one was asked before this change"
    await first.report(-1)
    await second.report(-1)
    assert later.answers == [None]
    assert (first.asks, second.asks) == (3, 3)


async def test_a_change_that_a_member_does_not_copy_in_time_says_so(master: Master, clock: VirtualClock) -> None:
    master.side.counted_others = frozenset({Member("f", 3), Member("g", 1)})
    follower = await RawFollower.signed_in(master.broker, master.end)
    change = Change(master)
    for _ in range(5):
        await follower.report(-1)
        await clock.run_for(0.55)
    assert change.answers == []
    await clock.run_for(0.6)
    assert "not yet at g (repeat the request)" in str(change.answers[0])


async def test_a_change_does_not_wait_for_a_member_that_has_left(master: Master, clock: VirtualClock) -> None:
    master.side.counted_others = frozenset({Member("f", 3)})
    change = Change(master)
    await clock.run_for(1)
    assert change.answers == []
    master.side.counted_others = frozenset()
    await clock.run_for(0.3)
    assert change.answers == [None]


async def test_a_change_is_asked_for_again_when_a_member_connects_again(master: Master) -> None:
    master.side.counted_others = frozenset({Member("f", 3)})
    first = await RawFollower.signed_in(master.broker, master.end)
    await first.report(-1)
    change = Change(master)
    first.close()
    again = await RawFollower.signed_in(master.broker, master.end)
    assert change.answers == []
    await again.report(-1)
    assert change.answers == [None]


async def test_changes_that_wait_end_when_the_member_steps_down(master: Master) -> None:
    master.side.counted_others = frozenset({Member("f", 3)})
    change = Change(master)
    master.broker.ha.cut_off()
    assert "not the master any more" in str(change.answers[0])
    assert "not the master any more" in str(Change(master).answers[0])


async def test_reports_count_once_a_member_that_is_not_in_sync_has_copied_the_tables(master: Master) -> None:
    """Otherwise it could be elected with old tables, or none."""
    master.side.joining = {Member("f", 3)}
    follower = await RawFollower.signed_in(master.broker, 0)
    await follower.report(master.end)
    assert master.side.events == [SIGNED_IN]
    await follower.report(-1)
    assert master.side.events == [SIGNED_IN, ("reported", "f#3", master.end)]


async def test_a_handover_waits_for_the_last_copy_of_tables_but_not_for_long(
    master: Master, clock: VirtualClock
) -> None:
    assert not await master.broker.ha.copy_tables(Member("f", 3)), "it is not connected"
    follower = await RawFollower.signed_in(master.broker, master.end)
    await follower.report(-1)
    asking = asyncio.ensure_future(master.broker.ha.copy_tables(Member("f", 3)))
    await settle()
    assert follower.asks == 2
    assert not asking.done()
    await follower.report(-1)
    assert await asking
    asking = asyncio.ensure_future(master.broker.ha.copy_tables(Member("f", 3)))
    await clock.run_for(0.8)
    assert not await asking
