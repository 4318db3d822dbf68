"""One member's state machine: what it says to bad input, and to answers that are late."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cometmq.broker.failover import events as e
from cometmq.broker.failover.document import Document, Member, founding_document
from cometmq.broker.failover.engines.interface import Presence
from cometmq.broker.failover.history import History
from cometmq.broker.failover.identity import Identity
from cometmq.broker.failover.machine import MemberMachine
from cometmq.broker.failover.options import CommandRefusedError, MemberOptions
from cometmq.broker.failover.states import TRANSITIONS, Change, State

A, B, C = Member("a", 1), Member("b", 1), Member("c", 1)
SET_ID = "5e7a1d5e"
OPTIONS = MemberOptions("a", "a:1", "a:2", "p1", SET_ID)
DOCUMENT = replace(
    founding_document(SET_ID, 1, A, 0).with_replica("a", "a:1", "a:2").with_replica("b", "b:1", "b:2"), serial=5
)


class Driver:
    """Gives a machine events, and keeps what it asks for."""

    def __init__(self, log: e.LogState | None = None, set_id: str = SET_ID, **options: Any) -> None:
        identity = Identity(1, "boot", set_id=set_id)
        log = log or e.LogState(0, 0, 0)
        self.now = 0.0
        self.machine = MemberMachine(replace(OPTIONS, **options), identity, log, 0.0, lambda: 0)
        self.asked: list[e.Request] = self.machine.start()

    def give(self, event: e.Event, after_s: float = 0.0) -> list[e.Request]:
        self.now += after_s
        requests = self.machine.handle(event, self.now)
        self.asked += requests
        return requests

    def last(self, kind: type) -> Any:
        """Return the last request of a kind."""
        return next(request for request in reversed(self.asked) if isinstance(request, kind))

    def answer(self, document: Document | None, version: str, *presences: Presence) -> list[e.Request]:
        """Answer the last read."""
        found = {presence.member.name: presence for presence in presences}
        return self.give(e.DocumentRead(self.last(e.Read).number, document, version, found))

    def lead(self, document: Document = DOCUMENT, *presences: Presence) -> None:
        """Make the member the master."""
        self.answer(document, "5", *presences)
        self.give(e.InOffice(document.epoch, 1, e.LogState(1, 1, document.epoch)))

    def state(self) -> State:
        return self.machine.state

    def was_short(self) -> bool:
        return self.machine.was_short

    def halted(self) -> str:
        request = self.last(e.Halt)
        assert self.state() is State.HALTED
        return f"{request.reason} ({request.next_step})"


def there(member: Member, serves: int = 0) -> Presence:
    return Presence(member, "p", f"{member.name}:1", f"{member.name}:2", serves, version="9")


# --- the start --------------------------------------------------------------------------------------
def test_an_empty_store_founds_the_set() -> None:
    driver = Driver(set_id="")
    driver.answer(None, "")
    swap = driver.last(e.Swap)
    assert (swap.version, swap.document.master, swap.document.epoch) == ("", A, 1)


def test_a_store_with_messages_founds_a_set_only_on_request() -> None:
    driver = Driver(e.LogState(100, 100, 0), set_id="")
    driver.answer(None, "")
    assert "this store has messages" in driver.halted()
    assert "--bootstrap" in driver.halted()
    asked = Driver(e.LogState(100, 100, 7), bootstraps=True)
    asked.answer(None, "")
    assert asked.last(e.Swap).document.epoch == 8
    assert asked.last(e.Swap).document.set_id == SET_ID


def test_a_wiped_engine_is_not_the_beginning_of_a_second_history() -> None:
    driver = Driver(e.LogState(0, 0, 0))  # the store is empty, but has belonged to a set
    driver.answer(None, "")
    assert "no document of this set" in driver.halted()


def test_the_set_is_saved_before_the_member_follows() -> None:
    driver = Driver(set_id="")
    driver.answer(replace(DOCUMENT, master=B, in_sync=frozenset({B})), "5", there(B, 1))
    assert driver.state() is State.STARTING
    saved = driver.last(e.SaveIdentity).identity
    assert saved.set_id == SET_ID
    driver.give(e.IdentitySaved(saved))
    driver.answer(replace(DOCUMENT, master=B, in_sync=frozenset({B})), "5", there(B, 1))
    assert driver.last(e.Follow).master.address == "b:1"


def test_two_clusters_with_one_prefix_are_told_apart() -> None:
    driver = Driver()
    driver.answer(replace(DOCUMENT, set_id="aaaaaaaa"), "5")
    assert "belongs to set aaaaaaaa" in driver.halted()
    assert "must not share a prefix" in driver.halted()


def test_an_engine_restored_from_a_backup_is_noticed_at_the_start() -> None:
    driver = Driver(e.LogState(100, 100, 4))
    driver.answer(replace(DOCUMENT, epoch=3), "5")
    assert "the engine's document has epoch 3, and this log has epoch 4" in driver.halted()


def test_two_members_with_one_name_are_noticed_and_a_former_process_is_not() -> None:
    driver = Driver()
    twin = replace(there(Member("a", 8)), address="10.9.9.9:10911")
    document = replace(DOCUMENT, master=B, in_sync=frozenset({B}))
    for _ in range(10):
        driver.answer(document, "5", twin, there(B, 1))
        driver.give(e.TwinAnswered(twin, False))
        driver.give(e.Tick(), 1)
    assert driver.state() is State.STARTING
    assert "a process at 10.9.9.9:10911 has announced the name a" in driver.machine.reason
    for _ in range(40):
        driver.answer(document, "5", twin, there(B, 1))
        driver.give(e.Tick(), 1)
    assert [request.twin for request in driver.asked if isinstance(request, e.AskTwin)] == [twin]
    assert "two members are called a; the other one is at 10.9.9.9:10911" in driver.halted()
    former = Driver()
    former.answer(document, "5", twin, there(B, 1))
    former.give(e.Tick(), 1)
    former.answer(document, "6", there(B, 1))
    assert former.state() is State.FOLLOWER


@pytest.mark.parametrize("generation", [1, 8])
def test_a_living_process_with_this_name_stops_a_start_before_anything_is_announced(generation: int) -> None:
    driver = Driver()
    twin = replace(there(Member("a", generation)), address="10.9.9.9:10911")
    driver.answer(replace(DOCUMENT, master=B, in_sync=frozenset({A, B})), "5", twin, there(B, 1))
    driver.give(e.TwinAnswered(twin, True))
    assert "two members are called a; the other one is at 10.9.9.9:10911" in driver.halted()
    assert not [request for request in driver.asked if isinstance(request, (e.Announce, e.Follow))]


def test_an_earlier_process_of_this_store_is_replaced_once_nobody_answers() -> None:
    driver = Driver()
    document = replace(DOCUMENT, master=B, in_sync=frozenset({A, B}))
    driver.answer(document, "5", there(A), there(B, 1))
    assert driver.state() is State.STARTING
    driver.give(e.TwinAnswered(there(A), False))
    driver.answer(document, "5", there(A), there(B, 1))
    assert driver.state() is State.FOLLOWER
    assert driver.last(e.Announce).presence.process == "p1"


def test_an_engine_that_is_silent_keeps_the_member_starting() -> None:
    driver = Driver()
    for _ in range(20):
        number = driver.last(e.Read).number
        driver.give(e.EngineSilent(number, "a:2379 does not answer"))
        assert driver.machine.view.trouble == "a:2379 does not answer"
        driver.give(e.Tick(), 1)
    assert driver.state() is State.STARTING
    assert "the document has not been read" in driver.machine.refusal


# --- the engine ---------------------------------------------------------------------------------------
def test_an_older_document_in_a_fresh_answer_stops_the_master() -> None:
    driver = Driver()
    driver.lead()
    driver.give(e.EngineChanged())
    driver.answer(replace(DOCUMENT, serial=4), "4")
    assert "the engine has epoch 1, change 4, and has had epoch 1, change 5" in driver.halted()
    assert isinstance(driver.last(e.StepDown), e.StepDown)
    assert driver.machine.refusal


def test_an_older_document_in_a_late_answer_means_nothing() -> None:
    driver = Driver()
    driver.lead()
    driver.give(e.SignedIn(B, 1, "b:1", "b:2"))
    late = driver.give(e.EngineChanged())
    assert isinstance(late[0], e.Read)
    driver.give(e.Reported(B, 1, 1))
    swap = driver.last(e.Swap)
    assert swap.document.in_sync == {A, B}
    driver.give(e.SwapAnswered(swap.number, True, swap.document, "6"))
    driver.give(e.DocumentRead(late[0].number, DOCUMENT, "5", {}))
    assert driver.state() is State.MASTER
    assert driver.machine.view.document == swap.document


def test_a_document_that_was_edited_by_hand_stops_the_master() -> None:
    driver = Driver()
    driver.lead()
    driver.give(e.EngineChanged())
    driver.answer(replace(DOCUMENT, in_sync=frozenset({A, C})), "8")
    assert "two different documents" in driver.halted()


def test_a_swap_without_an_answer_is_repeated_with_the_same_version_and_both_sets_count() -> None:
    driver = Driver()
    driver.lead()
    driver.give(e.SignedIn(B, 1, "b:1", "b:2"))
    driver.give(e.Reported(B, 1, 1))
    first = driver.last(e.Swap)
    driver.give(e.EngineSilent(first.number))
    driver.give(e.LogMoved(e.LogState(9, 9, 1)))
    driver.give(e.EngineChanged())
    driver.answer(DOCUMENT, "5")  # the old version proves nothing
    assert driver.machine.confirmed == 1
    driver.give(e.Tick(), 1)
    again = driver.last(e.Swap)
    assert again.number > first.number
    assert (again.document, again.version) == (first.document, first.version)
    driver.give(e.SwapAnswered(again.number, False, first.document, "6"))  # the first one has landed
    assert driver.machine.view.document == first.document
    driver.give(e.Reported(B, 1, 9))
    assert driver.machine.confirmed == 9


# --- the master ---------------------------------------------------------------------------------------
def test_too_few_members_in_sync_refuse_messages_before_they_are_appended() -> None:
    driver = Driver(min_in_sync=2)
    driver.lead()
    assert driver.machine.refusal == "1 members are in sync, fewer than minInSyncReplicas=2"
    driver.give(e.SignedIn(B, 1, "b:1", "b:2"))
    driver.give(e.Reported(B, 1, 1))
    swap = driver.last(e.Swap)
    driver.give(e.SwapAnswered(swap.number, True, swap.document, "6"))
    assert not driver.machine.refusal


def test_a_higher_epoch_stops_acknowledgements_until_the_document_was_read() -> None:
    driver = Driver()
    driver.lead()
    driver.give(e.EpochSeen(2))
    driver.give(e.LogMoved(e.LogState(9, 9, 1)))
    assert driver.state() is State.DOUBTING
    assert driver.machine.confirmed == 1
    driver.answer(DOCUMENT, "5")
    assert driver.state() is State.MASTER
    assert driver.machine.confirmed == 9


def test_a_faked_epoch_that_is_named_again_and_again_stops_a_master_for_one_read_only() -> None:
    driver = Driver()
    driver.lead()
    driver.give(e.EpochSeen(2**40))
    driver.give(e.EpochSeen(2**40))
    driver.give(e.EpochSeen(7))
    driver.answer(DOCUMENT, "5")
    assert driver.state() is State.MASTER
    driver.give(e.EpochSeen(2**40))
    assert driver.state() is State.DOUBTING


def test_reports_of_another_epoch_and_of_another_generation_do_not_count() -> None:
    driver = Driver()
    driver.lead(replace(DOCUMENT, in_sync=frozenset({A, B}), epoch=3), there(B))
    driver.give(e.LogMoved(e.LogState(9, 9, 3)))
    driver.give(e.Reported(B, 2, 9))
    driver.give(e.Reported(Member("b", 2), 3, 9))
    assert driver.machine.confirmed == 0
    driver.give(e.Reported(B, 3, 9))
    assert driver.machine.confirmed == 9


def test_alone_only_flushed_messages_are_acknowledged() -> None:
    driver = Driver()
    driver.lead()
    driver.give(e.LogMoved(e.LogState(9, 1, 1)))
    assert driver.machine.confirmed == 1
    driver.give(e.LogMoved(e.LogState(9, 9, 1)))
    assert driver.machine.confirmed == 9


def test_messages_take_the_short_way_and_a_member_that_has_left_is_noticed_all_the_same() -> None:
    driver = Driver()
    driver.lead(replace(DOCUMENT, in_sync=frozenset({A, B})), there(B))
    driver.give(e.SignedIn(B, 1, "b:1", "b:2"))
    driver.give(e.LogMoved(e.LogState(9, 9, 1)))
    assert driver.was_short()
    assert driver.give(e.Reported(B, 1, 9)) == [e.Confirm(9)]
    assert driver.was_short()
    for end in range(10, 40):
        driver.give(e.LogMoved(e.LogState(end, end, 1)), 0.1)
        assert driver.machine.confirmed == 9
    assert driver.machine.deadline <= driver.now
    driver.give(e.Tick())
    assert driver.last(e.Swap).document.in_sync == {A}


def test_a_followers_messages_take_the_short_way_and_it_reads_no_further_than_its_log() -> None:
    driver = Driver()
    driver.answer(replace(DOCUMENT, master=B, in_sync=frozenset({A, B})), "5", there(B, 1))
    driver.give(e.MasterHistory(1, History((), 0), History(((1, 0),), 5)))
    driver.give(e.LogMoved(e.LogState(9, 0, 1)))
    assert driver.was_short()
    assert driver.give(e.Heard(1, 20)) == []
    assert driver.was_short()
    assert (driver.machine.confirmed, driver.machine.readable) == (20, 9)
    driver.give(e.Heard(2, 30))
    assert not driver.was_short()
    assert driver.machine.confirmed == 20


def test_reports_of_a_member_that_joins_do_not_take_the_short_way() -> None:
    driver = Driver()
    driver.lead(DOCUMENT, there(B))
    driver.give(e.IdentitySaved(driver.last(e.SaveIdentity).identity))
    driver.give(e.LogMoved(e.LogState(9, 9, 1)))
    assert driver.was_short()
    driver.give(e.SignedIn(B, 1, "b:1", "b:2"))
    driver.give(e.Reported(B, 1, 9))
    assert not driver.was_short()
    assert driver.last(e.Swap).document.in_sync == {A, B}


# --- people -------------------------------------------------------------------------------------------
def test_commands_that_are_not_possible_say_what_to_do() -> None:
    driver = Driver()
    with pytest.raises(CommandRefusedError, match="ask the master"):
        driver.give(e.HandOver("b", "upgrade"))
    driver.lead()
    with pytest.raises(CommandRefusedError, match=r"b is not in sync.*cometmq failover status"):
        driver.give(e.HandOver("b", "upgrade"))
    with pytest.raises(CommandRefusedError, match="a#1 is master"):
        driver.give(e.Force("a person decided"))
    follower = Driver()
    follower.answer(replace(DOCUMENT, master=B, in_sync=frozenset({B})), "5", there(B, 1))
    with pytest.raises(CommandRefusedError, match=r"the set has a master.*handover"):
        follower.give(e.Force("a person decided"))


def test_a_handover_that_takes_too_long_is_given_up() -> None:
    driver = Driver()
    driver.lead(replace(DOCUMENT, in_sync=frozenset({A, B})), there(B))
    driver.give(e.SignedIn(B, 1, "b:1", "b:2"))
    driver.give(e.Reported(B, 1, 1))
    driver.give(e.LogMoved(e.LogState(9, 9, 1)))
    driver.give(e.HandOver("b", "upgrade"))
    assert "handing over" in driver.machine.refusal
    driver.give(e.Tick(), 1)
    assert driver.state() is State.MASTER


def test_a_handover_without_an_answer_is_taken_back_once_its_successor_has_lost_bytes() -> None:
    """If it landed now, the set would have a master that does not exist, and nobody could be elected."""
    driver = Driver()
    driver.lead(replace(DOCUMENT, in_sync=frozenset({A, B})), there(B))
    driver.give(e.SignedIn(B, 1, "b:1", "b:2"))
    driver.give(e.Reported(B, 1, 1))
    driver.give(e.DiskFailed("no space"))
    driver.give(e.Tick())
    handover = driver.last(e.Swap)
    assert (handover.document.master, handover.document.in_sync) == (B, {B})
    driver.give(e.EngineSilent(handover.number))
    driver.give(e.ReplicaLost(B))
    driver.give(e.DiskHealed())
    driver.give(e.LogMoved(e.LogState(9, 9, 1)))
    driver.give(e.EngineChanged())
    driver.answer(replace(DOCUMENT, in_sync=frozenset({A, B})), "5", there(Member("b", 2)))
    driver.give(e.Tick(), 1)
    again = driver.last(e.Swap)
    assert again.version == handover.version, "at most one of them lands"
    assert (again.document.master, again.document.epoch, again.document.in_sync) == (A, 1, {A})
    assert driver.machine.confirmed == 1, "the handover may still land until the version moves"
    driver.give(e.SwapAnswered(again.number, True, again.document, "6"))
    in_sync = driver.machine.in_sync
    assert in_sync is not None
    assert in_sync.counted == in_sync.certain == frozenset({A})
    assert driver.state() in (State.MASTER, State.HANDING_OVER)


def test_a_learner_stands_only_if_a_person_forces_it() -> None:
    driver = Driver(e.LogState(5, 5, 1))
    document = replace(DOCUMENT, master=B, in_sync=frozenset({B}))
    driver.answer(document, "5")
    for _ in range(30):
        driver.give(e.Tick(), 1)
        driver.answer(document, "5")
    assert driver.state() is State.FOLLOWER
    driver.give(e.Force("b is lost"))
    driver.give(e.FrozenLog(e.LogState(5, 5, 1)))
    driver.answer(document, "5")
    swap = driver.last(e.Swap)
    assert (swap.document.master, swap.document.in_sync, swap.document.epoch) == (A, {A}, 2)
    assert "b is lost" in swap.document.why


# --- replication --------------------------------------------------------------------------------------
def test_a_follower_copies_and_reports_only_after_the_cut_and_only_in_its_epoch() -> None:
    driver = Driver(e.LogState(12, 12, 1))
    document = replace(DOCUMENT, master=B, in_sync=frozenset({A, B}), epoch=2)
    driver.answer(document, "5", there(B, 2))
    assert not driver.machine.copies(2)
    driver.give(e.Heard(2, 12))
    assert driver.machine.readable == 0
    driver.give(e.MasterHistory(2, History(((1, 0),), 12), History(((1, 0), (2, 9)), 20)))
    assert driver.last(e.CopyFrom).offset == 9
    assert driver.machine.copies(2)
    assert not driver.machine.copies(1)
    driver.give(e.Heard(2, 12))
    assert driver.machine.readable == 9


def test_a_process_that_was_paused_does_not_take_its_master_for_silent() -> None:
    driver = Driver(e.LogState(5, 5, 1))
    document = replace(DOCUMENT, master=B, in_sync=frozenset({A, B}), epoch=2)
    driver.answer(document, "5", there(B, 2))
    driver.give(e.EngineChanged(), 3600)
    driver.answer(document, "5")
    assert driver.state() is State.FOLLOWER
    for _ in range(3):
        driver.give(e.Tick(), 1)
    driver.answer(document, "5")
    assert driver.state() is State.FROZEN


# --- the table ----------------------------------------------------------------------------------------
def test_every_state_can_be_left_by_a_person_or_a_change_and_is_reached() -> None:
    reached = set(TRANSITIONS.values()) | {State.STARTING}
    assert reached == set(State)
    assert {change for _, change in TRANSITIONS} == set(Change)
    assert {state for state, _ in TRANSITIONS} == set(State) - {State.HALTED}
    to_master = {state for (state, _), after in TRANSITIONS.items() if after is State.MASTER}
    assert to_master == {State.ELECTED, State.DOUBTING, State.HANDING_OVER}
