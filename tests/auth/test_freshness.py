"""Each request is taken once: by its stamp, its time, and what had to be forgotten."""

from __future__ import annotations

import random

import pytest

from cometmq.auth import freshness
from cometmq.auth.freshness import Freshness
from cometmq.auth.limits import SIGNATURE_AHEAD_SECONDS, SIGNATURE_SECONDS, SIGNATURE_WINDOW
from cometmq.auth.model import DeniedError
from cometmq.remoting.processors import RpcRejectedError
from cometmq.remoting.signing import Stamp, Stamps
from cometmq.testing import VirtualClock

ME, OTHER = "my-account", "other-account"


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def fresh(clock: VirtualClock) -> Freshness:
    made = Freshness(required=True, clock=clock)
    await clock.run_for(1)
    return made


async def test_a_stamp_is_taken_once_for_each_account(fresh: Freshness, clock: VirtualClock) -> None:
    stamps = Stamps(clock.now_ms)
    first, second = stamps.next(), stamps.next()
    fresh.check(ME, first)
    fresh.check(ME, second)
    for again in (first, second):
        with pytest.raises(DeniedError, match="is a replay"):
            fresh.check(ME, again)
    fresh.check(OTHER, first)  # its holder signed it: nobody uses up the stamps of others


async def test_requests_that_overtake_each_other_are_taken_as_far_as_the_window(
    fresh: Freshness, clock: VirtualClock
) -> None:
    stamps = Stamps(clock.now_ms)
    late, *others = (stamps.next() for _ in range(SIGNATURE_WINDOW))
    random.Random(1).shuffle(others)
    assert all(fresh.accepts(ME, stamp) for stamp in others)
    assert fresh.accepts(ME, late)
    assert not any(fresh.accepts(ME, stamp) for stamp in (late, *others))
    too_late = stamps.next()
    for _ in range(SIGNATURE_WINDOW):
        fresh.check(ME, stamps.next())
    with pytest.raises(RpcRejectedError, match="sign the request again"):
        fresh.check(ME, too_late)


async def test_the_time_must_be_near_the_servers_and_the_words_tell_the_difference(
    fresh: Freshness, clock: VirtualClock
) -> None:
    now = clock.now_ms()
    for moved_s, words in ((-SIGNATURE_SECONDS - 1, "301 s old"), (SIGNATURE_AHEAD_SECONDS + 1, "61 s ahead")):
        stamps = Stamps(lambda moved_s=moved_s: now + int(moved_s * 1000))  # type: ignore[misc]
        with pytest.raises(DeniedError, match=words) as denied:
            fresh.check(ME, stamps.next())
        assert "NTP" in (denied.value.next_step or "")
    kept = Stamps(clock.now_ms).next()
    fresh.check(ME, kept)
    await clock.run_for(SIGNATURE_SECONDS + 1)
    with pytest.raises(DeniedError, match="old"):
        fresh.check(ME, kept)


async def test_a_server_that_starts_takes_nothing_that_was_signed_before(clock: VirtualClock) -> None:
    captured = Stamps(clock.now_ms).next()
    await clock.run_for(1)
    started = Freshness(required=False, clock=clock)
    with pytest.raises(RpcRejectedError, match="before this server"):
        started.check(ME, captured)


async def test_signers_are_bounded_and_what_is_forgotten_cannot_be_sent_again(
    fresh: Freshness, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freshness, "MAX_SIGNERS", 100)
    taken: list[str] = []
    mine = Stamps(clock.now_ms)
    for _ in range(1_000):
        taken += [Stamps(clock.now_ms).next(), mine.next()]
        assert fresh.accepts(ME, taken[-2])
        assert fresh.accepts(ME, taken[-1])
        await clock.run_for(0.01)
    assert len(fresh._seen) <= 100
    assert not any(fresh.accepts(ME, stamp) for stamp in taken)
    await clock.run_for(SIGNATURE_SECONDS)
    assert fresh.accepts(ME, Stamps(clock.now_ms).next())


@pytest.mark.parametrize("text", ["", "1", "x" * 41, "1" * 42, "१" * 41, "1795395846001" + "g" * 28, " " * 41])
async def test_what_is_no_stamp_is_refused(fresh: Freshness, text: str) -> None:
    assert Stamp.parse(text) is None
    with pytest.raises(DeniedError, match="is malformed"):
        fresh.check(ME, text)


async def test_only_a_server_that_requires_stamps_refuses_requests_without(
    fresh: Freshness, clock: VirtualClock
) -> None:
    with pytest.raises(DeniedError, match="no AccessAt") as denied:
        fresh.check(ME, None)
    assert "requireFreshSignatures" in (denied.value.next_step or "")
    Freshness(required=False, clock=clock).check(ME, None)
