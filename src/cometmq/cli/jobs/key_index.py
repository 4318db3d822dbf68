"""``cometmq pipeline key-index``: index an archive by key, and look keys up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cometmq.cli.failures import DONE, WrongUseError
from cometmq.cli.jobs.reading import Ending, end, tell_step, wrong_use
from cometmq.cli.message import NotFoundError, show_found
from cometmq.cli.output import output_option

if TYPE_CHECKING:
    from cometmq.cli.job_report import Plot
    from cometmq.spark.key_index import KeyIndexReport

_directory = click.Path(path_type=Path, file_okay=False)


@click.command("key-index")
@click.option("--archive", required=True, type=_directory, help="Directory of the archive.")
@click.option("--index", required=True, type=_directory, help="Directory of its index.")
@click.option("--find", "key", help="Look this key (or unique key) up, instead of indexing what is new.")
@click.option("--topic", help="With --find: the topic.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=64, show_default=True, help="Most messages found.")
@click.option("--dry-run", is_flag=True, help="Write nothing; say how many messages would be indexed.")
@click.option("--master", default="local[*]", show_default=True, help="Spark master, or sc://HOST of Connect.")
@click.option("--report", "page", type=click.Path(path_type=Path, dir_okay=False), help="Write the report as HTML too.")
@output_option
def command(
    archive: Path,
    index: Path,
    key: str | None,
    topic: str | None,
    limit: int,
    dry_run: bool,
    master: str,
    page: Path | None,
    output: str,
) -> int:
    """Index an archive by key, or find the messages of a key that no broker may have any more.

    Each run adds what is new in the archive. Looking up needs no Spark.

    Exit codes: 0 done; 1 failed, or no message has the key; 2 wrong use.
    """
    from cometmq.spark.key_index import build_key_index, find_by_key

    if key is None:
        with wrong_use():
            done = build_key_index(archive, index, dry_run=dry_run, master=master, on_step=tell_step)
        return end(Ending(page, output), done, f"Keys of {done.archive}", _plots)
    if topic is None:
        raise WrongUseError("--find needs the topic", next_step="name it with --topic")
    if dry_run or page is not None:
        raise WrongUseError("--dry-run and --report are for indexing, not for --find")
    with wrong_use():
        found = find_by_key(archive, index, topic, key, limit=limit)
    if not found and output == "table":
        raise NotFoundError(f"the archive has no message of topic {topic} with key {key}")
    show_found(found, key, output)
    return DONE


def _plots(done: KeyIndexReport) -> list[Plot]:
    from cometmq.cli.job_report import Bars

    names = [of.topic[:24] for of in done.topics]
    counts = {"messages": [of.messages for of in done.topics], "keys": [of.keys for of in done.topics]}
    return [Bars("New in the index", "messages, keys", names, counts)]
