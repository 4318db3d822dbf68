"""``cometmq pipeline mask``: make masked copies, drop keys, and decrypt values."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cometmq.cli.failures import DONE, PARTLY_DONE
from cometmq.cli.jobs.command import (
    FILE,
    REPORT_OPTIONS,
    build_options,
    demand_one_place,
    finish_job,
    job_running,
    load,
    params_of,
    wrong_use,
)
from cometmq.cli.storage_options import StorageUrl, storage_option
from cometmq.quantity import quantity
from cometmq.spark.jobs.options import MaskOptions, MaskToTopicOptions
from cometmq.visible import json_text, visible

if TYPE_CHECKING:
    from cometmq.spark.jobs.mask.keys import KeyStore
    from cometmq.spark.jobs.mask_rules import MaskRules
    from cometmq.storage.options import StorageOptions

_KEYS: Final = click.option("--keys", type=FILE, required=True, help="File that contains the subjects' keys.")
_MASTER_KEY: Final = click.option(
    "--master-key-file", type=FILE, help="File with the base64-encoded master key.  [default: $COMETMQ_MASK_MASTER_KEY]"
)


@click.group("mask")
def command() -> None:
    """Copy messages with masked, hashed or encrypted fields, drop keys, or decrypt values."""


def _copy(
    rules: Path | None,
    rule: tuple[str, ...],
    subject: str | None,
    not_json: str | None,
    page: str | None,
    output: str,
    **parameters: Any,
) -> int:
    to, topics = parameters["to"], parameters["topic"]
    if (parameters["to_archive"] is None) == (to is None) or (to is None) != (parameters["work"] is None):
        raise click.UsageError("give the target of the copy: --to-archive DIR, or --to TOPIC and --work DIR")
    if to is not None and len(topics) > 1:
        raise click.UsageError("--to copies exactly one topic: give --topic once")
    of_topic = (
        parameters["by_key"],
        parameters["rate"] is not None,
        parameters["to_namesrv"] is not None,
        parameters["to_access"],
    )
    if to is None and any(of_topic):
        raise click.UsageError("--by-key, --rate, --to-namesrv and --to-access require --to")
    if to is not None and any(parameters[name] is not None for name in ("format", "catalog", "table")):
        raise click.UsageError("--format, --catalog and --table require --to-archive")
    if to is None:  # otherwise, --namesrv names the cluster that gets the copy
        demand_one_place()
    with job_running(MaskOptions) as running:
        options = build_options(MaskOptions, parameters, rules=_rules(rules, rule, subject, not_json), **running)
        if to is None:
            done = load("mask.job:mask")(options)
        else:
            parameters["to_namesrv"] = parameters["to_namesrv"] or parameters["namesrv"]
            source = {"source": options.source, "topic": topics[0], "rules": options.rules}
            done = load("mask.job:mask_to_topic")(build_options(MaskToTopicOptions, parameters, **source, **running))
    code = finish_job(done, page, output)
    if done.samples and output == "table":
        click.echo(visible(done.render_samples(), lines=True))
    return code


def _rules(file: Path | None, texts: tuple[str, ...], subject: str | None, not_json: str | None) -> MaskRules:
    from cometmq.spark.jobs.mask_rules import APART, rules_from_options, rules_from_toml

    if file is None:
        return rules_from_options(texts, subject=subject, not_json=not_json or APART)
    if texts or subject is not None or not_json is not None:
        raise click.UsageError("--rules cannot be combined with --rule, --subject or --not-json")
    return rules_from_toml(file)


command.add_command(
    click.Command(
        "copy",
        params=[
            *params_of(MaskOptions),
            *params_of(MaskToTopicOptions, only=("work", "namesrv", "to", "by_key", "per_second", "to_access")),
            click.Option(["--rules"], type=FILE, help="TOML file that contains the rules."),
            click.Option(["--rule"], multiple=True, metavar="FIELD=ACTION", help="Masking rule. May be repeated."),
            click.Option(
                ["--subject"],
                metavar="PATH",
                help="Path to the subject whose key is used to encrypt, such as $.userId (with --rule).",
            ),
            click.Option(
                ["--not-json"],
                type=click.Choice(["apart", "drop", "fail"]),
                help="Action for bodies that are not JSON (with --rule).",
            ),
            *REPORT_OPTIONS,
        ],
        callback=_copy,
        help=inspect.getdoc(MaskOptions),
    )
)


def _store(keys: Path, master_key_file: Path | None) -> KeyStore:
    from cometmq.spark.jobs.mask.keys import KeyStore, master_key_place

    with wrong_use():
        return KeyStore(keys, master_key_place(master_key_file))


@command.command("forget")
@click.argument("subjects", nargs=-1)
@_KEYS
@_MASTER_KEY
@click.option("--dry-run", is_flag=True, help="Only show how many subjects have a key.")
def forget(subjects: tuple[str, ...], keys: Path, master_key_file: Path | None, dry_run: bool) -> int:
    """Drop the keys of SUBJECTS permanently.

    If there are no arguments, subjects are read from stdin, one per line. Exit codes: 0 success; 1 failure; 2 usage
    error; 3 some subjects had no key and will never get one.
    """
    store = _store(keys, master_key_file)
    drop = store.has_key if dry_run else store.forget
    known = unknown = 0
    try:
        for subject in subjects or (line.rstrip("\n") for line in sys.stdin):
            if subject and drop(subject):
                known += 1
            elif subject:
                unknown += 1
    finally:
        store.close()
    done = "would be dropped" if dry_run else "dropped"
    click.echo(f"{quantity(known, 'key')} {done}" + (f", {quantity(unknown, 'subject')} had none" if unknown else ""))
    return PARTLY_DONE if unknown else DONE


@command.command("reveal")
@click.option("--archive", type=StorageUrl(exists=True), required=True, help="Directory or URL of the masked copy.")
@storage_option
@click.option("--topic", "topics", multiple=True, help="Read only this topic. May be repeated.")
@_KEYS
@_MASTER_KEY
def reveal(
    archive: str, storage: StorageOptions, topics: tuple[str, ...], keys: Path, master_key_file: Path | None
) -> int:
    """Write the messages in a masked copy with their values decrypted.

    Messages are written to stdout, one JSON object per line. If a message's encrypted value was changed, the message is
    written to stderr instead, with the reason. Exit codes: 0 success; 1 failure; 2 usage error; 3 some values remain
    encrypted because their keys were dropped, or some messages were changed.
    """
    import msgspec

    from cometmq.spark.jobs.mask.keys import Revealer, revealed_messages
    from cometmq.spark.records.bad_messages import BadMessage

    store = _store(keys, master_key_file)
    revealer = Revealer(store.key_of)
    changed = 0

    def report(message: BadMessage) -> None:
        nonlocal changed
        changed += 1
        click.echo(json_text(msgspec.to_builtins(message)), err=True)

    try:
        with wrong_use():
            for message in revealed_messages(archive, revealer, topics, apart=report, storage=storage.texts()):
                click.echo(json_text(message))
    finally:
        store.close()
    left_out = f", {quantity(changed, 'message')} left out" if changed else ""
    click.echo(f"{revealer.opened:,} values opened, {revealer.erased:,} erased{left_out}", err=True)
    return PARTLY_DONE if revealer.erased or changed else DONE
