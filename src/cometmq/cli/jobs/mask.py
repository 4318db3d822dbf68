"""``cometmq pipeline mask``: copies with fields masked, keys dropped, and what was encrypted made readable."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cometmq.cli.failures import DONE, PARTLY_DONE
from cometmq.cli.jobs.access import access_option
from cometmq.cli.jobs.reading import Reading, end, reading_options, report_options, wrong_use
from cometmq.cli.jobs.stopping import stopped_by_sigterm
from cometmq.cli.jobs.table import table_options
from cometmq.cli.visible import json_text, visible
from cometmq.quantity import quantity

if TYPE_CHECKING:
    from cometmq.cli.job_report import Plot
    from cometmq.spark.archive_table import TableFormat
    from cometmq.spark.mask_report import MaskedStep, MaskReport
    from cometmq.spark.mask_rules import MaskRules

F = TypeVar("F", bound=Callable[..., Any])
_file = click.Path(path_type=Path, dir_okay=False)
_directory = click.Path(path_type=Path, file_okay=False)

_master_key = click.option(
    "--master-key-file", type=_file, help="Holds the master key, base64; otherwise $COMETMQ_MASK_MASTER_KEY."
)


@click.group("mask")
def command() -> None:
    """Copy messages with fields masked, hashed or encrypted; drop keys; reveal."""


@command.command("copy")
@reading_options
@click.option("--topic", "topics", multiple=True, required=True, help="A topic; may be given several times.")
@click.option("--to-archive", type=_directory, help="Directory of the copy.")
@table_options
@click.option("--to", help="Topic to send the copy of one topic to, which must exist; needs --work.")
@click.option("--work", type=_directory, help="With --to: directory that keeps how far the copy is.")
@click.option("--to-namesrv", help="With --to: nameservers of that topic, if not --namesrv.")
@access_option("--to-access", "With --to, if not --access: credentials and TLS")
@click.option("--by-key", is_flag=True, help="With --to: choose queues anew by key, instead of keeping them.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="With --to: most messages a second.")
@click.option("--rules", "rules_file", type=_file, help="TOML file of the rules.")
@click.option("--rule", "rule_texts", multiple=True, metavar="FIELD=ACTION", help="A rule; may be given several times.")
@click.option("--subject", metavar="PATH", help="With --rule: whose key encrypts, such as $.userId.")
@click.option("--not-json", type=click.Choice(["apart", "drop", "fail"]), help="With --rule: bodies that are no JSON.")
@click.option("--keys", type=_file, help="File of the subjects' keys, for rules that encrypt.")
@_master_key
@click.option("--hash-secret-file", type=_file, help="Secret of hashes; otherwise $COMETMQ_MASK_HASH_SECRET.")
@click.option("--dry-run", is_flag=True, help="Write nothing; count, and show messages before and after.")
@click.option("--samples", type=click.IntRange(0, 100), default=3, show_default=True, help="With --dry-run: how many.")
@click.option("--step", type=click.IntRange(1), default=200_000, show_default=True, help="Offsets of one step.")
@report_options
def copy(
    reading: Reading,
    topics: tuple[str, ...],
    to_archive: Path | None,
    table_format: TableFormat | None,
    to: str | None,
    work: Path | None,
    to_namesrv: str | None,
    to_access: dict[str, str],
    by_key: bool,
    rate: float | None,
    rules_file: Path | None,
    rule_texts: tuple[str, ...],
    subject: str | None,
    not_json: str | None,
    dry_run: bool,
    step: int,
    **named: Any,
) -> int:
    """Copy topics with fields dropped, masked, hashed or encrypted.

    The copy is an archive (--to-archive) or another topic (--to). The same command goes on where the last run
    stopped. Exit codes: 0 done; 1 failed, what was copied stays; 2 wrong use; 3 partly done: stopped early, or some
    messages could not be masked and are apart.
    """
    from cometmq.spark.mask import mask, mask_to_topic

    if (to_archive is None) == (to is None) or (to is None) != (work is None):
        raise click.UsageError("say where the copy goes: --to-archive DIR, or --to TOPIC and --work DIR")
    if to is not None and len(topics) > 1:
        raise click.UsageError("one topic is copied to one topic: name one --topic with --to")
    if to is None and (by_key or rate is not None or to_namesrv is not None or to_access):
        raise click.UsageError("--by-key, --rate, --to-namesrv and --to-access go with --to")
    if to_archive is None and table_format is not None:
        raise click.UsageError("--format, --catalog and --table go with --to-archive")
    with stopped_by_sigterm() as stop, wrong_use():
        named |= {"dry_run": dry_run, "step_offsets": step, "master": reading.master, "on_step": _tell, "stop": stop}
        rules = _rules(rules_file, rule_texts, subject, not_json)
        if to_archive is not None:
            done = mask(reading.source, topics, rules, to_archive, table_format=table_format, **named)
        else:
            assert to is not None, "one of the two is given"
            assert work is not None, "it goes with --to"
            target = to_namesrv or reading.namesrv
            named |= {"by_key": by_key, "per_second": rate, "to_access": to_access or None}
            done = mask_to_topic(reading.source, topics[0], rules, work, target, to, **named)
    code = end(reading, done, f"Masked copy of {', '.join(topics)}", _plots, DONE if done.complete else PARTLY_DONE)
    if done.samples and reading.output == "table":
        click.echo(visible(done.render_samples(), lines=True))
    return code


def _rules(file: Path | None, texts: tuple[str, ...], subject: str | None, not_json: str | None) -> MaskRules:
    from cometmq.spark.mask_rules import APART, rules_from_options, rules_from_toml

    if file is None:
        return rules_from_options(texts, subject=subject, not_json=not_json or APART)
    if texts or subject is not None or not_json is not None:
        raise click.UsageError("--rules FILE says all: leave out --rule, --subject and --not-json")
    return rules_from_toml(file)


def _tell(step: MaskedStep) -> None:
    speed = step.total / step.seconds if step.seconds else 0.0
    click.echo(f"{quantity(step.messages, 'message')} copied; {step.total:,} so far, {speed:,.0f} messages/s", err=True)


def _plots(done: MaskReport) -> list[Plot]:
    from cometmq.cli.job_report import Bars, Line

    plots: list[Plot] = [
        Bars("Masked", "values", [name[:24] for name in done.values], {"values": [*done.values.values()]})
    ]
    if len(done.steps) > 1:
        totals = {"messages": [step.total for step in done.steps]}
        plots.append(Line("Progress", "messages copied", "seconds", [step.seconds for step in done.steps], totals))
    return plots


@command.command("forget")
@click.argument("subjects", nargs=-1)
@click.option("--keys", type=_file, required=True, help="File of the subjects' keys.")
@_master_key
@click.option("--dry-run", is_flag=True, help="Drop nothing; say how many have a key.")
def forget(subjects: tuple[str, ...], keys: Path, master_key_file: Path | None, dry_run: bool) -> int:
    """Drop the keys of SUBJECTS for ever.

    Without any they are read from stdin, one a line. Exit codes: 0 done; 1 failed; 2 wrong use; 3 some had no key, and
    will never get one.
    """
    from cometmq.spark.mask_keys import KeyStore, master_key_place

    with wrong_use():
        store = KeyStore(keys, master_key_place(master_key_file))
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
@click.option("--archive", type=_directory, required=True, help="Directory of the masked copy.")
@click.option("--topic", "topics", multiple=True, help="Only this topic; may be given several times.")
@click.option("--keys", type=_file, required=True, help="File of the subjects' keys.")
@_master_key
def reveal(archive: Path, topics: tuple[str, ...], keys: Path, master_key_file: Path | None) -> int:
    """Write a masked copy's messages with encrypted values opened.

    They go to stdout, a line of JSON each. A message with an encrypted value that was changed is told on stderr
    instead, as a line of JSON with the reason. Exit codes: 0 done; 1 failed; 2 wrong use; 3 keys of some values were
    dropped, which stay as they are, or some messages were changed.
    """
    import msgspec

    from cometmq.spark.apart import Apart
    from cometmq.spark.mask_keys import KeyStore, master_key_place
    from cometmq.spark.mask_reveal import Revealer, revealed_messages

    with wrong_use():
        store = KeyStore(keys, master_key_place(master_key_file))
    revealer = Revealer(store.key_of)
    changed = 0

    def tell(message: Apart) -> None:
        nonlocal changed
        changed += 1
        click.echo(json_text(msgspec.to_builtins(message)), err=True)

    try:
        with wrong_use():
            for message in revealed_messages(archive, revealer, topics, apart=tell):
                click.echo(json_text(message))
    finally:
        store.close()
    left_out = f", {quantity(changed, 'message')} left out" if changed else ""
    click.echo(f"{revealer.opened:,} values opened, {revealer.erased:,} erased{left_out}", err=True)
    return PARTLY_DONE if revealer.erased or changed else DONE
