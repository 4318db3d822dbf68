"""The options of all jobs. One frozen class per job defines the signature of its function and the options of its
command.

This module can be imported without PySpark and PyArrow, so commands can show their help without them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.message.names import TRACE_TOPIC
from cometmq.options.forms import DURATION, MEBIBYTES, NAMES, POSITIVE, SECONDS, TIME, one_of, whole
from cometmq.spark.archives.table import FORMATS, ICEBERG, TableFormat
from cometmq.spark.jobs.job import (
    ACCESS,
    DIRECTORY,
    FILE,
    NAMESRV,
    OLD_DIRECTORY,
    SETTINGS,
    SparkOptions,
    argument,
    job_options,
    option,
    options_from,
)
from cometmq.spark.jobs.message_source import MessageSource

if TYPE_CHECKING:
    from cometmq.client.dead_letters import Selection as DeadLetterSelection
    from cometmq.spark.jobs.mask_rules import MaskRules
    from cometmq.store.config import StoreConfig

Tell = Callable[[str], object]
OnStep = Callable[[Any], object]
"""Function that is called with each committed step (:class:`.report.report.Step`). Its text is a progress line."""

MAX_DAYS: Final = 366
_NAMESRV: Final = "Nameservers, host:port separated by semicolons."
_ACCESS: Final = "Credentials and TLS"
_TOPIC: Final = "A topic; may be given several times."
_STEPS: Final = "called with a sentence at the start of each step"
_STOP: Final = "event that ends the run after the current step"


def _silent(_: Any) -> None:
    """Ignore a step. This is the default progress function."""


# Archives --------------------------------------------------------------------------------------------


@job_options
class TableOptions(TableFormat):
    """The command-line options for the format of an archive's table."""

    name: str = option(
        "Format of an archive that does not exist yet.  [default: parquet]",
        "--format",
        default=FORMATS[0],
        form=one_of(*FORMATS),
    )
    catalog: str | None = option("With --format iceberg: a catalog in pyiceberg's configuration.", default=None)
    table: str | None = option(
        "With --format iceberg: namespace and name of the table.  [default: cometmq.archive]", default=None
    )

    @classmethod
    def of_command(cls, name: str | None, catalog: str | None, table: str | None) -> TableFormat | None:
        """Return the format that a command's options describe, or None if they are not set."""
        return TableFormat(name or ICEBERG, catalog, table) if name or catalog or table else None


@job_options
class _IntoArchive(SparkOptions):
    """Options of the archive job that apply to both topics and stores."""

    _: KW_ONLY
    table_format: TableFormat | str | None = options_from(
        TableOptions, "format of an archive that does not exist yet: its name, or a TableFormat", default=None
    )
    options: Mapping[str, str] | None = option(
        "Any other source option; may be given several times.", "--option", default=None, form=SETTINGS
    )
    dry_run: bool = option("Archive nothing; print how many messages would be archived.", default=False)
    on_batch: OnStep | None = argument("called after each commit", default=None)
    stop: threading.Event | None = argument("event that ends the run after the current commit", default=None)


@job_options
class ArchiveOptions(_IntoArchive):
    """Archive topics into Parquet, Delta Lake or Iceberg, exactly once, and continue where the last run stopped.

    Use compact, expire and vacuum to maintain an archive; see their --help.

    Exit codes: 0 done; 1 failed, commits are kept; 2 wrong use; 3 partly done: stopped early, messages were
    deleted before they were read (with --option failOnDataLoss=false), or bodies could not be decompressed.
    """

    namesrv: str = option(_NAMESRV, "-n", "--namesrv", form=NAMESRV)
    topics: str | Sequence[str] = option(_TOPIC, "--topic", key="topic", many=True, required=False)
    to: str | Path = option("Directory of the archive.", form=DIRECTORY, required=False)
    checkpoint: str | Path = option("Directory of the checkpoint.", form=DIRECTORY, required=False)
    _: KW_ONLY
    trigger: str = option("availableNow, or an interval such as 30s, 5m, 1h.", default="availableNow")
    commit_interval: str | None = option(
        "Run until Ctrl-C or SIGTERM, and commit when messages have waited this long (30s, 5m), or a commit is full.",
        default=None,
        key="maxTriggerDelay",
    )
    starting_offsets: str = option(
        "Start of queues that are not in the archive yet: earliest, latest or JSON.", default="earliest"
    )
    max_offsets_per_trigger: int | None = option(
        "Maximum number of messages in one commit.", "--commit-rows", "--max-offsets", default=1_000_000, form=whole(1)
    )
    commit_bytes: str | None = option(
        "Approximate maximum number of bytes in one commit: 64m, 2g.", default="2g", key="maxBytesPerTrigger"
    )
    access: Mapping[str, str] | None = option(_ACCESS, default=None, form=ACCESS, secret=True)


@job_options
class ArchiveStoreOptions(_IntoArchive):
    """Archive the topics in the files of a store."""

    store: str | Path = option(
        "Read a broker's store in this directory instead of brokers; needs no checkpoint.",
        form=OLD_DIRECTORY,
        required=False,
    )
    to: str | Path = option("Directory of the archive.", form=DIRECTORY, required=False)
    _: KW_ONLY
    broker_name: str = option("With --store: the name of the store's broker.", default="")
    topics: str | Sequence[str] = option(_TOPIC, "--topic", default=(), many=True)


@job_options
class _UpkeepOptions:
    """Options that all upkeep jobs share."""

    archive: str | Path = option("Directory of the archive.", "archive", form=OLD_DIRECTORY)
    _: KW_ONLY
    dry_run: bool = option("Change nothing; print what would be done.", default=False)
    clock: Clock = argument("the clock", default=SYSTEM_CLOCK)


@job_options
class CompactOptions(_UpkeepOptions, SparkOptions):
    """Join small files while readers and an archive job may be running.

    Exit codes: 0 done; 1 failed, commits are kept; 2 wrong use; 3 partly done: stopped before its end.
    """

    _: KW_ONLY
    topics: Sequence[str] = option("Only this topic; may be given several times.", "--topic", default=(), many=True)
    target_bytes: int = option("Join files up to this size, MiB.", "--target-mb", default=128 << 20, form=MEBIBYTES)
    settled_ms: int = option(
        "Only hours that ended at least this long ago: 30m, 1d.", "--settled", default=3_600_000, form=DURATION
    )
    on_step: OnStep = argument("called after each commit", default=_silent)
    stop: threading.Event | None = argument("event that ends the run after the current commit", default=None)


@job_options
class ExpireOptions(_UpkeepOptions):
    """Remove hours older than --keep from an archive.

    vacuum deletes their files later. Exit codes: 0 done; 1 failed; 2 wrong use.
    """

    _: KW_ONLY
    keep_ms: int = option("Keep messages that were stored within this time: 12h, 90d.", "--keep", form=DURATION)
    topics: Sequence[str] = option("Only this topic; may be given several times.", "--topic", default=(), many=True)


@job_options
class VacuumOptions(_UpkeepOptions):
    """Delete files below an archive that its table does not name.

    Exit codes: 0 done; 1 failed; 2 wrong use.
    """

    _: KW_ONLY
    keep_ms: int = option(
        "Keep files that were compacted or expired within this time, for readers of an older version.",
        "--keep",
        default=7 * 24 * 3_600_000,
        form=DURATION,
    )


@job_options
class KeyIndexOptions(SparkOptions):
    """Index an archive by key, or find archived messages with a key.

    Each run adds the new messages of the archive. A lookup needs no Spark.

    Exit codes: 0 done; 1 failed, or no message has the key; 2 wrong use.
    """

    archive: str | Path = option("Directory of the archive.", form=DIRECTORY)
    index: str | Path = option("Directory of the archive's index.", form=DIRECTORY)
    _: KW_ONLY
    dry_run: bool = option("Write nothing; print how many messages would be indexed.", default=False)
    on_step: Tell = argument(_STEPS, default=_silent)


@job_options
class Selection:
    """Selects the messages in an archive that meet every given condition."""

    since_ms: int | None = option("Only messages stored at or after this time.", "--since", default=None, form=TIME)
    until_ms: int | None = option("Only messages stored before this time.", "--until", default=None, form=TIME)
    keys: tuple[str, ...] = option(
        "Only messages with this key or unique key; may be repeated.", "--key", default=(), many=True
    )
    tags: tuple[str, ...] = option("Only messages with this tag; may be repeated.", "--tag", default=(), many=True)
    where: str | None = option(
        "Only messages that meet this Spark SQL predicate on the archive's columns.", default=None
    )


@job_options
class ReplayOptions(SparkOptions):
    """Send messages from an archive to a topic, and continue where the last run stopped.

    Exit codes: 0 done; 1 failed, sent messages are not sent again; 2 wrong use; 3 partly done: stopped
    early, or there are warnings.
    """

    archive: str | Path = option("Directory of the archive.", form=DIRECTORY)
    namesrv: str = option(_NAMESRV, "-n", "--namesrv", form=NAMESRV)
    ledger: str | Path = option(
        "Directory of the ledger with the replay's progress; driver and executors must share it.", form=DIRECTORY
    )
    _: KW_ONLY
    topic: str | None = option("Topic in the archive; optional if it contains only one.", default=None)
    to: str | None = option("Existing topic to send to; by default, the same name.", default=None)
    selection: Selection | None = options_from(Selection, "the messages to send; all by default", default=None)
    by_key: bool = option("Choose new queues by key instead of keeping the old ones.", default=False)
    per_second: float | None = option(
        "Maximum number of messages per second, with a tolerance of a tenth.", "--rate", default=None, form=POSITIVE
    )
    keep_born_time: bool = option(
        "Send messages with their original born times (slower). By default, only REPLAY_ORIGIN contains them.",
        default=False,
    )
    translate_groups: Sequence[str] = option(
        "Groups, separated by commas, that continue in the new topic at their current position.", default=(), form=NAMES
    )
    groups_namesrv: str | None = option("Nameservers of the brokers with these groups, if not --namesrv.", default=None)
    access: Mapping[str, str] | None = option(_ACCESS, default=None, form=ACCESS, secret=True)
    groups_access: Mapping[str, str] | None = option(
        "For --groups-namesrv, if not --access: credentials and TLS", default=None, form=ACCESS, secret=True
    )
    dry_run: bool = option("Send nothing and write nothing; print how much would be sent.", default=False)
    step_offsets: int | None = option(
        "Number of offsets in one step; by default, it depends on the rate.", "--step", default=None, form=whole(1)
    )
    timeout_ms: int = argument("maximum time for the acknowledgement of messages, ms", default=120_000)
    on_step: OnStep = argument("called after each step", default=_silent)
    stop: threading.Event | None = argument(_STOP, default=None)


@job_options
class AuditOptions(SparkOptions):
    """Compare the produced, stored, consumed and archived messages of a topic, per queue and minute.

    Exit codes: 0 everything agrees; 1 failed; 2 wrong use; 3 something differs, and the report names the first of
    each kind.
    """

    namesrv: str = option(_NAMESRV, "-n", "--namesrv", form=NAMESRV)
    topic: str = option("The topic.")
    _: KW_ONLY
    archive: str | Path | None = option("Directory of the topic's archive.", default=None, form=DIRECTORY)
    groups: Sequence[str] = option(
        "A consumer group that consumes the topic; may be given several times.", "--group", default=(), many=True
    )
    trace_topic: str = option("Topic with the producers' traces.", default=TRACE_TOPIC)
    allow_duplicates: bool = option(
        "Report unique keys that are stored twice as notes instead of disagreements.", default=False
    )
    detail: str | Path | None = option(
        "A new directory for the counts per queue and minute, as Parquet.", default=None, form=DIRECTORY
    )
    access: Mapping[str, str] | None = option(_ACCESS, default=None, form=ACCESS, secret=True)
    on_step: Tell = argument(_STEPS, default=_silent)


# Jobs that look into messages ------------------------------------------------------------------------


@job_options
class TraceOptions(SparkOptions):
    """Join the clients' message traces: latencies by topic and group, slow consumers, the path of one message.

    Exit codes: 0 done; 1 failed, or the message has no trace; 2 wrong use.
    """

    source: MessageSource = options_from(MessageSource, "brokers, or an archive that contains the trace topic")
    _: KW_ONLY
    trace_topic: str = option("The topic with the clients' traces.", default=TRACE_TOPIC)
    to: str | Path | None = option(
        "Write the joined rows to this new directory, as Parquet.", default=None, form=DIRECTORY
    )
    message_id: str | None = option(
        "Also show the path of this message, by the client's id (unique key).", "--message", default=None
    )
    top: int = option("Number of slow consumers.", default=10, form=whole(1, 1000))
    on_step: Tell = argument(_STEPS, default=_silent)


@job_options
class DelayOptions(SparkOptions):
    """Show how late delayed messages were, when waiting messages are due, and which messages are stuck.

    Exit codes: 0 done; 1 failed; 2 wrong use; 3 something is stuck.
    """

    source: MessageSource = options_from(
        MessageSource,
        "brokers, a store, or an archive that also contains the topics with waiting messages. With ``begin_ms`` only "
        "messages that were delivered or due since then count; ``end_ms`` is the time of the report",
    )
    topics: Sequence[str] = option("A topic; by default, all except system topics.", "--topic", default=(), many=True)
    _: KW_ONLY
    delay_levels: str | None = option("messageDelayLevel of the brokers of an archive or store.", default=None)
    grace_ms: int = option(
        "Seconds after its due time before a message counts as stuck.", "--grace", default=60_000, form=SECONDS
    )
    days: int = option("Number of days in the histogram of due times.", default=7, form=whole(1, MAX_DAYS))
    top: int = option("Maximum number of listed topics and messages.", default=20, form=whole(1, 10_000))
    on_step: Tell = argument(_STEPS, default=_silent)
    clock: Clock = argument("the clock for a source of brokers", default=SYSTEM_CLOCK)


KEYS: Final = ("keys", "shardingKey", "tags")
"""Fields that can be used as a message's key. If a message has several KEYS, each of them counts."""


@job_options
class SkewOptions(SparkOptions):
    """Show hot keys, how unevenly queues are filled, and how many queues topics should have.

    Exit codes: 0 done; 1 failed; 2 wrong use.
    """

    source: MessageSource = options_from(MessageSource, "brokers, an archive or a store")
    topics: str | Sequence[str] = option(_TOPIC, "--topic", many=True)
    _: KW_ONLY
    by: str = option("The field that is used as a message's key.", default=KEYS[0], form=one_of(*KEYS))
    top: int = option("Number of hot keys.", default=20, form=whole(1, 10_000))
    consumers: int = option("Number of consumers in the largest group.", default=1, form=whole(1))
    handled_per_s: float = option(
        "Messages per second that a consumer can handle from one queue.", "--handled", default=1000.0, form=POSITIVE
    )
    on_step: Tell = argument(_STEPS, default=_silent)


@job_options
class DeadLetterOptions(SparkOptions):
    """Count dead letters by group, original topic, tag, key and time, and resend them.

    Exit codes: 0 done; 1 failed, or no dead letter could be sent again; 2 wrong use; 3 some could not be sent again.
    """

    source: MessageSource = options_from(MessageSource, "brokers, an archive or a store")
    groups: Sequence[str] = option(
        "A consumer group; by default all groups with dead letters.", "--group", default=(), many=True
    )
    _: KW_ONLY
    selection: DeadLetterSelection | None = argument("the chosen dead letters; by default all", default=None)
    reason: str | None = option(
        "Also count by this property, which contains the application's reason for a failure.", default=None
    )
    top: int = option("Maximum number of listed topics, tags and keys.", default=20, form=whole(1, 10_000))
    on_step: Tell = argument(_STEPS, default=_silent)


@job_options
class SendAgainOptions:
    """Send chosen dead letters again."""

    namesrv: str = argument("nameservers, ``host:port`` separated by semicolons")
    groups: Sequence[str] = argument("consumer groups")
    selection: DeadLetterSelection = argument("the chosen dead letters")
    _: KW_ONLY
    ledgers: Path = option(
        "With --resend: directory of dlq-GROUP.ledger, the record of sent messages; cometmq dlq resend uses it too.",
        default=Path(),
        form=DIRECTORY,
    )
    rate: float | None = option("With --resend: maximum number of messages per second.", default=None, form=POSITIVE)
    dry_run: bool = option("With --resend: only print how many would be sent.", default=False)
    access: Mapping[str, str] | None = argument("credentials and TLS, by the options of the source", default=None)
    on_step: Tell = argument(_STEPS, default=_silent)


# Jobs that make something anew -----------------------------------------------------------------------


@job_options
class CopyOptions(SparkOptions):
    """Options that apply to both kinds of masked copies."""

    _: KW_ONLY
    keys: str | Path | None = option(
        "File for the subjects' keys, for rules that encrypt; created if missing.", default=None, form=FILE
    )
    master_key_file: str | Path | None = option(
        "File with the master key, base64; by default $COMETMQ_MASK_MASTER_KEY.", default=None, form=FILE
    )
    hash_secret_file: str | Path | None = option(
        "File with the secret for hashes; by default $COMETMQ_MASK_HASH_SECRET.", default=None, form=FILE
    )
    dry_run: bool = option("Write nothing; count, and show messages before and after masking.", default=False)
    samples: int = option("With --dry-run: number of messages to show.", default=3, form=whole(0, 100))
    step_offsets: int = option(
        "Number of offsets in one step; a step is repeated after a crash.", "--step", default=200_000, form=whole(1)
    )
    on_step: OnStep = argument("called after each step", default=_silent)
    stop: threading.Event | None = argument(_STOP, default=None)


@job_options
class MaskOptions(CopyOptions):
    """Copy topics with fields dropped, masked, hashed or encrypted.

    The copy is an archive (--to-archive) or another topic (--to). The same command continues where the last run
    stopped. Exit codes: 0 done; 1 failed, copied messages are kept; 2 wrong use; 3 partly done: stopped early, or some
    messages could not be masked and were not copied.
    """

    source: MessageSource = options_from(
        MessageSource, "brokers, an archive or a store; with times, only messages stored between them are copied"
    )
    topics: str | Sequence[str] = option(_TOPIC, "--topic", many=True)
    rules: MaskRules = argument("result of ``rules_from_toml`` or ``rules_from_options``")
    to: str | Path = option("Directory of the copy.", "--to-archive", form=DIRECTORY, required=False)
    _: KW_ONLY
    table_format: TableFormat | str | None = options_from(
        TableOptions, "format of a copy that does not exist yet: its name, or a TableFormat", default=None
    )


@job_options
class MaskToTopicOptions(CopyOptions):
    """Copy one topic into another with fields masked."""

    source: MessageSource = argument("as of ``mask``")
    topic: str = argument("the topic")
    rules: MaskRules = argument("as of ``mask``")
    work: str | Path = option(
        "With --to: directory of the masked messages and of the replay's ledger.", form=DIRECTORY, required=False
    )
    namesrv: str = option("With --to: nameservers of that topic, if not --namesrv.", "--to-namesrv", required=False)
    to: str = option("Topic to send the copy of one topic to, which must exist; needs --work.", required=False)
    _: KW_ONLY
    by_key: bool = option("With --to: choose new queues by key instead of keeping the old ones.", default=False)
    per_second: float | None = option(
        "With --to: maximum number of messages per second.", "--rate", default=None, form=POSITIVE
    )
    to_access: Mapping[str, str] | None = option(
        "With --to, if not --access: credentials and TLS", default=None, form=ACCESS, secret=True
    )


@job_options
class RebuildOptions(SparkOptions):
    """Rebuild the consume queues and the index of a store from its log, byte for byte as a broker writes them.

    The old files are moved to comet/quarantine in the store. Exit codes: 0 done, or no difference; 1 failed, or
    (--dry-run) queues differ from the log; 2 wrong use.
    """

    store: str | Path = option("Directory of the store; no broker may be using it.", form=OLD_DIRECTORY)
    _: KW_ONLY
    dry_run: bool = option("Only compare the consume queues with the log.", default=False)
    config: StoreConfig | Path | None = option(
        "The broker's broker.conf, with delay levels and file sizes.", default=None, form=FILE
    )
    bad_records_path: str | Path | None = option(
        "Directory for damaged records, which get no unit. If not set, the job fails at the first one.",
        "--bad-records",
        default=None,
        form=DIRECTORY,
    )
    on_step: Tell = argument(_STEPS, default=_silent)
