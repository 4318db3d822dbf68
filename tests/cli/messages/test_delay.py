"""cometmq delay."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from tests.cli.conftest import CommandLine
from tests.helpers.waiting import wait_for

from cometmq.client import Message
from cometmq.client.sync import SyncProducer


def test_waiting_messages_are_counted_and_listed(cometmq: CommandLine) -> None:
    tomorrow = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    with SyncProducer("later", cometmq.namesrv) as producer:
        sent = {
            hours: producer.send(Message("reminders", b"x", deliver_at=tomorrow + timedelta(hours=hours)))
            for hours in (2, 0, 1)
        }
        other = producer.send(Message("alarms", b"x", delay=timedelta(days=9)))
    wait_for(lambda: len(cometmq("delay", "list", "-o", "json").json()) == 4, "all are in the timer log", 60)

    counts = {row["topic"]: row["waiting"] for row in cometmq("delay", "waiting", "-o", "json").json()}
    assert counts == {"reminders": 3, "alarms": 1}
    rows = cometmq("delay", "list", "-o", "jsonl").lines()
    assert [row["msg_id"] for row in rows] == [*(sent[hours].msg_id for hours in (0, 1, 2)), other.msg_id]
    assert datetime.fromisoformat(rows[0]["due"]) == tomorrow
    assert (rows[0]["topic"], rows[0]["queue_id"]) == ("reminders", sent[0].queue.queue_id)
    assert [row["position"] for row in rows] == [1, 2, 0, 3]

    begin, end = tomorrow.isoformat(), (tomorrow + timedelta(hours=2)).isoformat()
    chosen = cometmq("delay", "list", "--topic", "reminders", "--begin", begin, "--end", end, "-o", "json").json()
    assert [row["position"] for row in chosen] == [1, 2]
    assert [row["position"] for row in cometmq("delay", "list", "--limit", "1", "-o", "json").json()] == [1]
    assert other.msg_id in cometmq("delay", "list", "--topic", "alarms").out


def test_what_produce_sends_waits_as_long_as_it_says(cometmq: CommandLine) -> None:
    before = datetime.now(UTC)
    assert cometmq("produce", "delayed", "--delay", "1d2h30m", stdin="a\nb\n").code == 0
    after = datetime.now(UTC)
    assert cometmq("produce", "delayed", "--deliver-at", "2031-01-01T09:00:00.500+00:00", "--body", "x").code == 0
    expected = cometmq("produce", "delayed", "--delay", "1h", "--json", stdin='{"body": "y", "tags": "t"}\n')
    assert expected.code == 0, expected.err
    listed = ("delay", "list", "--topic", "delayed", "-o", "json")
    wait_for(lambda: len(cometmq(*listed).json()) == 4, "all are in the timer log", 60)
    dues = [datetime.fromisoformat(row["due"]) for row in cometmq(*listed).json()]
    assert dues[3] == datetime(2031, 1, 1, 9, 0, 0, 500_000, UTC)
    delay, patience = timedelta(days=1, hours=2, minutes=30), timedelta(seconds=1)
    assert all(before + delay - patience <= due <= after + delay + patience for due in dues[1:3])
    assert cometmq("produce", "levels", "--delay-level", "1", "--body", "x").code == 0
    come = ("consume", "levels", "--from-beginning", "--max", "1", "-o", "jsonl")
    (message,) = cometmq(*come).lines()
    born, stored = (datetime.fromisoformat(message[name]) for name in ("born", "stored"))
    assert stored - born >= timedelta(seconds=0.99)
    assert message["properties"]["DELAY"] == "1"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--topic", "t" * 128], "longer than"),
        (["--since", "2031-01-02", "--until", "2031-01-01"], "--until is before --since"),
        (["--limit", "0"], "--limit"),
    ],
)
def test_wrong_use_is_told(offline: CommandLine, arguments: list[str], expected: str) -> None:
    wrong = offline("delay", "list", *arguments)
    assert wrong.code == 2
    assert expected in wrong.err
