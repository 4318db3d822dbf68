"""``cometmq pipeline key-index``: index an archive by key, and look keys up."""

from __future__ import annotations

from pathlib import Path

import click

from cometmq.cli.failures import WrongUseError
from cometmq.cli.message import NotFoundError, show_found
from cometmq.cli.output import output_option

_directory = click.Path(path_type=Path, file_okay=False)


@click.command("key-index")
@click.option("--archive", required=True, type=_directory, help="Directory of the archive.")
@click.option("--index", required=True, type=_directory, help="Directory of its index.")
@click.option("--find", "key", help="Look this key (or unique key) up, instead of indexing what is new.")
@click.option("--topic", help="With --find: the topic.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=64, show_default=True, help="Most messages found.")
@click.option("--master", default="local[*]", show_default=True, help="Spark master.")
@output_option
def command(
    archive: Path, index: Path, key: str | None, topic: str | None, limit: int, master: str, output: str
) -> None:
    """Index an archive by key, or find the messages of a key that no broker may have any more.

    Each run adds what is new in the archive. Looking up needs no Spark.
    """
    from cometmq.spark.key_index import build_key_index, find_by_key

    if key is None:
        done = build_key_index(archive, index, master=master)
        click.echo(
            "nothing new in the archive"
            if done is None
            else f"indexed {done.messages:,} messages under {done.keys:,} keys"
        )
        return
    if topic is None:
        raise WrongUseError("--find needs the topic", next_step="name it with --topic")
    found = find_by_key(archive, index, topic, key, limit=limit)
    if not found and output == "table":
        raise NotFoundError(f"the archive has no message of topic {topic} with key {key}")
    show_found(found, key, output)
