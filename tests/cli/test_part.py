"""Long lists: patterns choose names, pages bound a list, and nobody takes a page for the whole."""

from __future__ import annotations

import sys

import pytest
from tests.cli.conftest import CommandLine

from cometmq.cli.part import Part, matching_names
from cometmq.client import Message
from cometmq.client.sync import SyncProducer

NAMES = [f"orders-{number:02d}" for number in range(25)]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (None, 25),
        ("*", 25),
        ("orders-1?", 10),
        ("orders-[12]4", 2),
        ("orders", 0),
        ("Orders-*", 0),
    ],
)
def test_a_pattern_is_that_of_a_shell_and_fits_whole_names(pattern: str | None, found: int) -> None:
    assert len(matching_names(NAMES, pattern)) == found


@pytest.mark.parametrize(
    ("part", "names", "told"),
    [
        (Part(limit=10), NAMES[:10], "Rows 1 to 10 of 25: --page 2 shows more, "),
        (Part(limit=10, number=3), NAMES[20:], "Rows 21 to 25 of 25: --match"),
        (Part(limit=10, number=9), [], "Rows none of 25: --match"),
        (Part("orders-1*", 4, 3), NAMES[18:20], "Rows 9 to 10 of 10: --match"),
        (Part(limit=25), NAMES, ""),
        (Part(), NAMES, ""),
    ],
)
def test_a_page_tells_of_the_others(
    part: Part, names: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert part.of(NAMES) == names
    assert capsys.readouterr().err.startswith(told)


@pytest.fixture(scope="module")
def filled(cometmq: CommandLine) -> CommandLine:
    """A cluster with 60 topics."""
    with SyncProducer("fill", cometmq.namesrv) as producer:
        for number in range(60):
            producer.send(Message(f"part-{number:02d}", b"x"))
    return cometmq


def test_a_pipe_and_json_have_all_and_the_options_choose(filled: CommandLine) -> None:
    everything = filled("topic", "list", "--match", "part-*", "-o", "json").json()
    assert [row["topic"] for row in everything] == [f"part-{number:02d}" for number in range(60)]
    assert len(filled("topic", "list", "--match", "part-*").out.splitlines()) == 60 + 3
    some = filled("topic", "list", "--match", "part-?5", "--limit", "2", "--page", "3", "-o", "json")
    assert [row["topic"] for row in some.json()] == ["part-45", "part-55"]
    assert "Rows 5 to 6 of 6" in some.err


def test_groups_have_the_same_options(filled: CommandLine) -> None:
    for number in range(3):
        assert filled("group", "create", f"part-group-{number}").code == 0
    found = filled("group", "list", "--match", "part-group-*", "--limit", "2", "-o", "json")
    assert [row["group"] for row in found.json()] == ["part-group-0", "part-group-1"]
    assert "--page 2 shows more" in found.err


def test_on_a_terminal_a_table_is_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of the decorator, which the command's own rows give."""
    import click

    from cometmq.cli.part import part_options

    seen: list[Part] = []

    @click.command()
    @part_options(7)
    @click.option("--output", default="table")
    def command(part: Part, output: str) -> None:
        seen.append(part)

    for arguments, on_terminal in (
        ([], True),
        ([], False),
        (["--output", "json"], True),
        (["--limit", "0"], True),
        (["--page", "2"], False),
    ):
        monkeypatch.setattr(sys.stdout, "isatty", lambda on_terminal=on_terminal: on_terminal)
        command.main(arguments, standalone_mode=False)
    assert [(part.limit, part.number) for part in seen] == [(7, 1), (0, 1), (0, 1), (0, 1), (7, 2)]
