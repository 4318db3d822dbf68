"""``cometmq pipeline``: Spark jobs on topics, archives and stores."""

from __future__ import annotations

import dataclasses
import inspect
import logging
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from cometmq.cli.failures import DONE, WrongUseError
from cometmq.cli.jobs.command import (
    REPORT_OPTIONS,
    JobOption,
    build_options,
    demand_one_place,
    finish_job,
    job_command,
    job_running,
    load,
    params_of,
    print_step,
)
from cometmq.cli.lazy_group import LazyGroup
from cometmq.cli.output import FORMATS
from cometmq.quantity import quantity
from cometmq.spark.jobs.options import (
    ArchiveOptions,
    ArchiveStoreOptions,
    AuditOptions,
    CompactOptions,
    DeadLetterOptions,
    DelayOptions,
    ExpireOptions,
    KeyIndexOptions,
    RebuildOptions,
    ReplayOptions,
    SendAgainOptions,
    SkewOptions,
    TraceOptions,
    VacuumOptions,
)
from cometmq.spark.jobs.table.options import FreshTableOptions

if TYPE_CHECKING:
    from cometmq.spark.jobs.trace import TraceReport

JOBS: Final = {
    "archive": ("", "Archive topics or a store to Parquet, Delta Lake or Iceberg, exactly once."),
    "table": ("", "Keep a table of a topic fresh, with columns decoded from bodies."),
    "replay": ("", "Send messages from an archive to a topic in order, and resume after an interruption."),
    "audit": ("", "Compare produced, stored, consumed and archived messages."),
    "key-index": ("", "Index an archive by key, and find messages that brokers no longer have."),
    "mask": ("mask", "Copy messages with masked, hashed or encrypted fields, and erase data by dropping keys."),
    "trace": ("", "Show how long messages took to reach each consumer, from the clients' traces."),
    "delay": ("", "Show how late delayed messages were, and which ones are waiting or stuck."),
    "skew": ("", "Show hot keys and uneven queues, and recommend the number of queues."),
    "dlq": ("", "Count dead letters by cause, and resend them."),
    "rebuild": ("", "Rebuild a store's consume queues and index from its log."),
}
"""Each job's module, which is loaded when the command runs, and its line in the help."""


# Archives --------------------------------------------------------------------------------------------

_PATTERN: Final = JobOption(
    ["--pattern"], help="Archive topics whose complete names match this regular expression, instead of --topic."
)
_PATTERN.key = "subscribePattern"


def _archive(pattern: str | None, vacuum: bool, page: str | None, output: str, **parameters: Any) -> int:
    ctx = click.get_current_context()
    if ctx.invoked_subcommand is not None:
        return DONE
    from cometmq.spark.session.interruption import silence_spark

    given = (parameters["option"] or {}) | ({} if pattern is None else {"subscribePattern": pattern})
    parameters["option"] = given
    is_store, dry_run = parameters["store"] is not None, parameters["dry_run"]
    if parameters["to"] is None and parameters["catalog"] and parameters["table"]:
        parameters["to"] = f"iceberg://{parameters['catalog']}/{parameters['table']}"
    if parameters["to"] is None:
        raise click.UsageError("give the archive directory with --to", ctx)
    if not is_store and not parameters["topic"] and not given.keys() & {"topic", "subscribe", "subscribePattern"}:
        raise click.UsageError("give the topics to archive with --topic or --pattern", ctx)
    for param in ctx.command.params:
        if ctx.get_parameter_source(param.name or "") is not ParameterSource.COMMANDLINE:
            continue
        if is_store and param.name in _OF_BROKERS:
            raise click.UsageError(f"{param.opts[-1]} cannot be used with --store, which is read without brokers", ctx)
        if not is_store and param.name == "broker_name":
            raise click.UsageError(f"{param.opts[-1]} requires --store", ctx)
    kind: type[Any] = ArchiveStoreOptions if is_store else ArchiveOptions
    function = "archive.from_store:archive_store" if is_store else "archive.job:archive"
    with job_running(kind, silence_spark) as running:
        done = load(function)(build_options(kind, parameters, **running))
    removed = 0
    if vacuum and done.queues and not dry_run:
        removed = load("archive.upkeep:vacuum")(parameters["to"], storage=parameters["storage"]).files_before
    code = finish_job(done, page, output, vacuumed=removed)
    if vacuum and output == "table":
        click.echo(f"removed {quantity(removed, 'file')} that no commit refers to")
    return code


_OF_BROKERS: Final = {param.name for param in params_of(ArchiveOptions)} - {
    param.name for param in params_of(ArchiveStoreOptions)
}
"""Options that apply only to an archive from brokers, not to an archive from a store."""


_ARCHIVE: Final = click.Group(
    "archive",
    invoke_without_command=True,
    subcommand_metavar="[compact|expire|vacuum ARCHIVE]",
    params=[
        *params_of(ArchiveOptions),
        *params_of(ArchiveStoreOptions, only=("store", "broker_name")),
        _PATTERN,
        click.Option(["--vacuum"], is_flag=True, help="Afterwards, remove unused files, as archive vacuum does."),
        *REPORT_OPTIONS,
    ],
    callback=_archive,
    help=inspect.getdoc(ArchiveOptions),
    commands=[
        job_command("compact", CompactOptions, "archive.upkeep:compact"),
        job_command("expire", ExpireOptions, "archive.upkeep:expire"),
        job_command("vacuum", VacuumOptions, "archive.upkeep:vacuum"),
    ],
)


def _key_index(key: str | None, topic: str | None, limit: int, page: str | None, output: str, **parameters: Any) -> int:
    from cometmq.cli.messages.message import NotFoundError, show_found

    with job_running(KeyIndexOptions) as running:
        if key is None:
            done = load("key_index:build_key_index")(build_options(KeyIndexOptions, parameters, **running))
            return finish_job(done, page, output)
        if topic is None:
            raise WrongUseError("--find requires a topic", next_step="give it with --topic")
        if parameters["dry_run"] or page is not None:
            raise WrongUseError("--dry-run and --report cannot be used with --find")
        found = load("key_index:find_by_key")(
            parameters["archive"], parameters["index"], topic, key, limit=limit, storage=parameters["storage"]
        )
    if not found and output == "table":
        raise NotFoundError(f"the archive contains no message of topic {topic} with key {key}")
    show_found(found, key, output)
    return DONE


_KEY_INDEX: Final = click.Command(
    "key-index",
    params=[
        *params_of(KeyIndexOptions),
        click.Option(["--find", "key"], help="Find messages with this key or unique key, instead of indexing."),
        click.Option(["--topic"], help="Topic to search (with --find)."),
        click.Option(
            ["--limit"],
            type=click.IntRange(1, 10_000),
            default=64,
            show_default=True,
            help="Maximum number of messages to find.",
        ),
        REPORT_OPTIONS[0],
        click.Option(
            ["-o", "--output"],
            type=click.Choice(FORMATS),
            default="table",
            show_default=True,
            help="Format of the result.",
        ),
    ],
    callback=_key_index,
    help=inspect.getdoc(KeyIndexOptions),
)


# Dead letters ----------------------------------------------------------------------------------------


def _dead_letters(
    key: str | None,
    tag: str | None,
    origin_topic: str | None,
    resend: bool,
    page: str | None,
    output: str,
    **parameters: Any,
) -> int:
    from cometmq.client.admin import END_OF_TIME_MS
    from cometmq.client.dead_letters import Selection

    groups, since, until = parameters["group"], parameters["since"], parameters["until"]
    if resend and (parameters["archive"] is not None or parameters["store"] is not None or not groups):
        raise click.UsageError("--resend requires --group and brokers, and cannot be used with --archive or --store")
    if not resend and (parameters["dry_run"] or parameters["rate"] is not None):
        raise click.UsageError("--dry-run and --rate require --resend")
    demand_one_place()
    last_ms = END_OF_TIME_MS if until is None else until - 1
    wanted = Selection(key=key, tag=tag, origin_topic=origin_topic, begin_ms=since or 0, end_ms=last_ms)
    with job_running(DeadLetterOptions) as running:
        options = build_options(DeadLetterOptions, parameters, selection=wanted, **running)
        done = load("dead_letters:dead_letters")(options)
    if resend:
        again = {
            "namesrv": parameters["namesrv"],
            "groups": groups,
            "selection": wanted,
            "access": parameters["access"],
        }
        resent = load("dead_letters:send_again")(build_options(SendAgainOptions, parameters, **again, **running))
        done = dataclasses.replace(done, resent=resent, dry_run=parameters["dry_run"])
    return finish_job(done, page, output)


_DLQ: Final = click.Command(
    "dlq",
    params=[
        *params_of(DeadLetterOptions),
        click.Option(["--key"], help="Select only dead letters with this key."),
        click.Option(["--tag"], help="Select only dead letters with this tag."),
        click.Option(["--origin-topic"], help="Select only dead letters that were sent to this topic."),
        click.Option(
            ["--resend"],
            is_flag=True,
            help="Also resend the selected dead letters, each only once. Requires --group.",
        ),
        *params_of(SendAgainOptions),
        *REPORT_OPTIONS,
    ],
    callback=_dead_letters,
    help=inspect.getdoc(DeadLetterOptions),
)


# All jobs --------------------------------------------------------------------------------------------


def _show_way(done: TraceReport, output: str) -> None:
    from cometmq.cli.messages.trace import show_way

    if done.way is not None and not done.way.is_known:
        print_step(f"{done.trace_topic} has no trace of {done.way.msg_id}")
    elif done.way is not None and output == "table":
        show_way(done.way)


_COMMANDS: Final = {
    "archive": _ARCHIVE,
    "key-index": _KEY_INDEX,
    "dlq": _DLQ,
    "table": job_command("table", FreshTableOptions, "table.job:fresh_table", streams=True),
    "replay": job_command("replay", ReplayOptions, "replay.job:replay"),
    "audit": job_command("audit", AuditOptions, "audit.job:audit"),
    "trace": job_command("trace", TraceOptions, "trace:trace", after=_show_way),
    "delay": job_command("delay", DelayOptions, "delay.job:delay"),
    "skew": job_command("skew", SkewOptions, "skew:skew"),
    "rebuild": job_command("rebuild", RebuildOptions, "rebuild.job:rebuild"),
}


class JobGroup(LazyGroup):
    """Command group for commands that run Spark. It explains Spark's start and interruptions on stderr."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return one command, or None if no command has this name."""
        return _COMMANDS.get(cmd_name) or super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> object:
        """Run the job."""
        starting = logging.getLogger("cometmq.spark.session.environment")
        starting.setLevel(logging.INFO)
        starting.addHandler(_TELLING)
        starting.propagate = False
        for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
            # otherwise hundreds of JVM stack frames would precede our error message
            logging.getLogger(name).setLevel(logging.CRITICAL)
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            sentence = "interrupted; committed work is kept: run the same command again to continue"
            click.echo(f"cometmq: {sentence}", err=True)
            raise


class _Telling(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print_step(record.getMessage())


_TELLING: Final = _Telling()


@click.group("pipeline", cls=JobGroup, members=JOBS, package="cometmq.cli.jobs")
def command() -> None:
    """Run Spark jobs on topics, archives and stores."""
