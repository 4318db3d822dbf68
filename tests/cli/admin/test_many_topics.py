"""Many topics are made and deleted by one command: from names, ranges, a file, or a pattern."""

from __future__ import annotations

import asyncio
import os
import pty
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.cli.conftest import CommandLine

from cometmq.cli.failures import WrongUseError
from cometmq.cli.topic_names import chosen_names
from cometmq.client.admin.accounts import PartlyChangedError
from cometmq.client.admin.many import each
from cometmq.client.admin.several import ASKED_AT_ONCE
from cometmq.errors import CometMQError
from cometmq.message.names import POP_LOG_TOPIC
from cometmq.testing import ProcessCluster

MANY = 1_000


@pytest.fixture(scope="module")
def cometmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    with ProcessCluster(brokers=2, data=tmp_path_factory.mktemp("two")) as cluster:
        yield CommandLine(cluster.namesrv_address)


def listed(cometmq: CommandLine, pattern: str) -> list[str]:
    return [row["topic"] for row in cometmq("topic", "list", "--match", pattern, "-o", "json").json()]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["a", "b", "a"], ["a", "b"]),
        (["t-{1..3}"], ["t-1", "t-2", "t-3"]),
        (["t{08..10}"], ["t08", "t09", "t10"]),
        (["t{1..2}-{1..2}"], ["t1-1", "t1-2", "t2-1", "t2-2"]),
        (["t{3..1}"], []),
        ([], []),
    ],
)
def test_a_range_is_a_name_for_each_number(arguments: Sequence[str], names: list[str]) -> None:
    assert chosen_names(arguments, None) == names


@pytest.mark.parametrize("wrong", ["t{1..}", "t{a..b}", "t{1..200000}", "t{1..99999}{1..99999}", "no name", ""])
def test_what_is_no_name_and_too_many_names_are_wrong_use(wrong: str) -> None:
    with pytest.raises(WrongUseError):
        chosen_names([wrong], None)


def test_a_thousand_topics_come_and_go(cometmq: CommandLine) -> None:
    created = cometmq("topic", "create", f"many-{{0001..{MANY}}}", "--queues", "1")
    assert (created.code, created.err) == (0, "Created 1,000 topics with 1 queue each on broker-0, broker-1.\n")
    assert len(listed(cometmq, "many-*")) == MANY

    again = cometmq("topic", "create", f"many-{{0001..{MANY + 1}}}", "--queues", "1")
    assert again.err == (
        "Created 1 topic with 1 queue each on broker-0, broker-1.\n1,000 topics already existed with these settings.\n"
    )

    other = cometmq("topic", "create", f"many-{{0001..{MANY + 2}}}", "--queues", "2")
    assert other.code == 1
    assert "nothing was created" in other.err
    assert len(listed(cometmq, "many-*")) == MANY + 1

    refused = cometmq("topic", "delete", "--match", "many-0[1-5]??")
    assert refused.code == 2
    assert "Topics many-0100, many-0101, " in refused.err
    assert "and 490 more.\n" in refused.err
    assert "deleting 500 topics deletes their messages; nothing was deleted" in refused.err

    deleted = cometmq("topic", "delete", "--match", "many-0[1-5]??", "--yes")
    assert (deleted.code, deleted.err) == (0, "Deleted 500 topics.\n")
    assert len(listed(cometmq, "many-*")) == MANY + 1 - 500


def test_a_file_has_a_name_a_line(cometmq: CommandLine, tmp_path: Path) -> None:
    names = tmp_path / "names"
    names.write_text("# of the billing team\nbills\n\n  invoices-{1..2}  \n", encoding="utf-8")
    assert cometmq("topic", "create", "--file", str(names), "payments").code == 0
    for name in ("bills", "invoices-1", "invoices-2", "payments"):
        assert listed(cometmq, name) == [name]
    shown = cometmq("topic", "delete", "--file", str(names), "--dry-run")
    assert shown.code == 0
    assert shown.out.count("8 queues, permission rw, 0 messages") == 6, "three topics on two brokers"
    assert listed(cometmq, "bills") == ["bills"]
    gone = cometmq("topic", "delete", "--file", "-", "--yes", stdin=names.read_text(encoding="utf-8") + "never-made")
    assert gone.err == "Skipped because they do not exist: never-made.\nDeleted 3 topics.\n"
    assert listed(cometmq, "bills") == []
    assert listed(cometmq, "payments") == ["payments"]


def test_a_pattern_never_takes_topics_of_the_system(cometmq: CommandLine) -> None:
    before = {row["topic"] for row in cometmq("topic", "list", "--all", "-o", "json").json()}
    assert cometmq("topic", "create", "only").code == 0
    assert cometmq("topic", "delete", "--match", "*", "--yes").code == 0
    after = {row["topic"] for row in cometmq("topic", "list", "--all", "-o", "json").json()}
    assert {"TBW102", "broker-0", "DefaultCluster"} <= after <= before | {POP_LOG_TOPIC}, "the broker makes that one"
    assert listed(cometmq, "*") == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("delete",), "give a topic"),
        (("create",), "give a topic"),
        (("delete", "--match", "nothing-*", "--yes"), "no topic matches nothing-*"),
        (("delete", "never-1", "never-2", "--yes"), "none of these 2 topics exists"),
        (("delete", "never-made", "--yes"), "no route for topic never-made"),
    ],
)
def test_a_command_for_no_topic_says_so(cometmq: CommandLine, words: Sequence[str], told: str) -> None:
    failed = cometmq("topic", *words)
    assert failed.code in (1, 2)
    assert told in failed.err


def test_a_terminal_shows_how_far_it_is(cometmq: CommandLine) -> None:
    ours, theirs = pty.openpty()
    process = cometmq.start("topic", "create", "seen-{1..300}", stderr=theirs)
    os.close(theirs)
    written = b""
    try:
        while chunk := os.read(ours, 65_536):
            written += chunk
    except OSError:  # the command has ended
        pass
    finally:
        os.close(ours)
    assert process.wait() == 0
    assert b"Creating topics" in written
    assert b"/300" in written


async def test_after_a_failure_nothing_more_begins_and_the_error_says_how_much_is_done() -> None:
    begun: list[str] = []

    async def change(name: str) -> None:
        begun.append(name)
        await asyncio.sleep(0)
        if name == "t70":
            raise CometMQError("the broker is away")

    advanced: list[int] = []
    with pytest.raises(PartlyChangedError) as caught:
        await each([f"t{number}" for number in range(1_000)], change, "deleted", advanced.append)
    assert len(begun) <= 70 + 2 * ASKED_AT_ONCE
    assert caught.value.message == f"{len(advanced)} of 1,000 topics were deleted: the broker is away"
    assert len(advanced) == len(begun) - 1


async def test_a_failure_of_the_first_is_that_failure() -> None:
    async def change(_: str) -> None:
        raise CometMQError("denied")

    with pytest.raises(CometMQError, match=r"^denied$"):
        await each(["a", "b"], change, "deleted", lambda _: None)
