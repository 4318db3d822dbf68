"""--help of every command: nothing is cut off, every option is explained, and one thing has one name everywhere."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from cometmq.cli.main import root

NARROW = 80


def commands(command: click.Command = root, *above: click.Context) -> Iterator[click.Context]:
    """A context for every command and group, from the root down."""
    name = command.name if above else "cometmq"
    ctx = click.Context(command, parent=above[-1] if above else None, info_name=name, terminal_width=NARROW)
    yield ctx
    if isinstance(command, click.Group):
        for known in command.list_commands(ctx):
            member = command.get_command(ctx, known)
            assert member is not None, known
            yield from commands(member, ctx)


ALL = [*commands()]


@pytest.mark.parametrize("ctx", ALL, ids=lambda ctx: ctx.command_path)
def test_help_is_whole_on_a_narrow_terminal(ctx: click.Context) -> None:
    lines = ctx.get_help().splitlines()
    assert [line for line in lines if line.endswith("...") and not line.startswith("Usage:")] == []
    assert [line for line in lines if len(line) > NARROW] == []


@pytest.mark.parametrize("ctx", ALL, ids=lambda ctx: ctx.command_path)
def test_every_option_is_explained(ctx: click.Context) -> None:
    options = [param for param in ctx.command.params if isinstance(param, click.Option)]
    assert [option.name for option in options if not option.help] == []


def test_one_thing_has_one_name() -> None:
    first_names = {option.opts[0] for ctx in ALL for option in ctx.command.params if isinstance(option, click.Option)}
    assert {"--since", "--until", "--limit", "--topic", "--group"} <= first_names
    others = {"--begin", "--end", "--from", "--start", "--consumer-group", "--topics", "--groups", "--name-server"}
    assert first_names & others == set()


def test_times_go_by_the_names_of_mqadmin_too() -> None:
    query = next(ctx for ctx in ALL if ctx.command_path == "cometmq message query")
    given = ["--topic", "orders", "--key", "k", "--begin", "1", "--end", "2", "--max", "3"]
    values = query.command.make_context("query", given).params
    assert (values["begin"], values["end"], values["limit"]) == (1, 2, 3)


SPANS = [ctx for ctx in ALL if {"--since", "--until"} <= {opt for param in ctx.command.params for opt in param.opts}]


@pytest.mark.parametrize("ctx", SPANS, ids=lambda ctx: ctx.command_path)
@pytest.mark.parametrize("given", [["--since", "2", "--until", "1"], ["--until", "1", "--since", "2"]])
def test_a_time_that_ends_before_it_begins_is_wrong_use(ctx: click.Context, given: list[str]) -> None:
    """In every command: it would find nothing, and say so as if there were nothing."""
    with pytest.raises(click.BadParameter, match="--until is before --since"):
        ctx.command.make_context(ctx.info_name, [*given])


def test_a_time_that_ends_as_it_begins_is_a_moment() -> None:
    query = next(ctx for ctx in SPANS if ctx.command_path == "cometmq message query")
    given = ["--topic", "orders", "--key", "k", "--since", "5", "--until", "5"]
    assert query.command.make_context("query", given).params["end"] == 5


def test_commands_with_a_span_of_time_are_known() -> None:
    assert {ctx.command_path.split()[-1] for ctx in SPANS} >= {"query", "resend", "consume", "replay", "skew", "audit"}
