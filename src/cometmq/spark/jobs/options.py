"""The options of all jobs. One frozen class per job defines the parameters of its function and the options of its
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
from cometmq.spark.archives.table import TableFormat
from cometmq.spark.jobs.job import (
    ACCESS,
    DIRECTORY,
    FILE,
    KEY_STORE,
    NAMESRV,
    NEW_PLACE,
    OLD_DIRECTORY,
    OLD_PLACE,
    SETTINGS,
    STORAGE_HELP,
    STORAGE_SETTINGS,
    SparkOptions,
    argument,
    job_options,
    option,
    options_from,
)
from cometmq.spark.jobs.message_source import MessageSource
from cometmq.spark.jobs.table_options import TableOptions

if TYPE_CHECKING:
    from cometmq.client.dead_letters import Selection as DeadLetterSelection
    from cometmq.spark.jobs.mask_rules import MaskRules
    from cometmq.store.config import StoreConfig

Tell = Callable[[str], object]
OnStep = Callable[[Any], object]
"""Callback for each committed step (:class:`.report.report.Step`). The step's text is a progress line."""

MAX_DAYS: Final = 366
_NAMESRV: Final = "Nameserver addresses (host:port), separated by semicolons."
_ACCESS: Final = "Credentials and TLS"
_TOPIC: Final = "Topic to process. May be repeated."
_STEPS: Final = "called with a sentence at the start of each step"
_STOP: Final = "event that ends the run after the current step"


def _silent(_: Any) -> None:
    """Ignore a step. This is the default progress function."""


# Archives --------------------------------------------------------------------------------------------


@job_options
class _IntoArchive(SparkOptions):
    """Options of the archive job that apply to both topics and stores."""

    _: KW_ONLY
    table_format: TableFormat | str | None = options_from(
        TableOptions, "format for a new archive: its name, or a TableFormat", default=None
    )
    options: Mapping[str, str] | None = option(
        "Any other source option. May be repeated.", "--option", default=None, form=SETTINGS
    )
    dry_run: bool = option("Print how many messages would be archived, without archiving them.", default=False)
    storage: Mapping[str, str] | None = option(STORAGE_HELP, default=None, form=STORAGE_SETTINGS, secret=True)
    on_batch: OnStep | None = argument("called after each commit", default=None)
    stop: threading.Event | None = argument("event that ends the run after the current commit", default=None)


@job_options
class ArchiveOptions(_IntoArchive):
    """Archive topics into Parquet, Delta Lake or Iceberg, exactly once, and continue where the last run stopped.

    Use compact, expire and vacuum to maintain an archive; see their --help.

    Exit codes: 0 done; 1 failed, commits are kept; 2 usage error; 3 partly done: stopped early, messages were deleted
    before they were read (with --option failOnDataLoss=false), or bodies could not be decompressed.
    """

    namesrv: str = option(_NAMESRV, "-n", "--namesrv", form=NAMESRV)
    topics: str | Sequence[str] = option(_TOPIC, "--topic", key="topic", many=True, required=False)
    to: str | Path = option("Directory or URL of the archive.", form=NEW_PLACE, required=False)
    checkpoint: str | Path | None = option(
        "Directory of the checkpoint, or a URL whose file system Spark has. Without it, a run continues where the "
        "archive ends.",
        default=None,
        form=NEW_PLACE,
    )
    _: KW_ONLY
    trigger: str = option("Trigger: availableNow, or an interval such as 30s, 5m or 1h.", default="availableNow")
    commit_interval: str | None = option(
        "Run until interrupted, and commit when messages have waited this long (30s, 5m) or a commit is full.",
        default=None,
        key="maxTriggerDelay",
    )
    starting_offsets: str = option(
        "Starting offsets for queues that are not in the archive yet: earliest, latest or JSON.", default="earliest"
    )
    max_offsets_per_trigger: int | None = option(
        "Maximum number of messages per commit.", "--commit-rows", "--max-offsets", default=1_000_000, form=whole(1)
    )
    commit_bytes: str | None = option(
        "Approximate maximum size of a commit, such as 64m or 2g.", default="2g", key="maxBytesPerTrigger"
    )
    access: Mapping[str, str] | None = option(_ACCESS, default=None, form=ACCESS, secret=True)


@job_options
class ArchiveStoreOptions(_IntoArchive):
    """Archive the topics in the files of a store."""

    store: str | Path = option(
        "Read a store instead of brokers: a directory, or the URL of a copy or backup. No checkpoint is needed.",
        form=OLD_PLACE,
        required=False,
    )
    to: str | Path = option("Directory or URL of the archive.", form=NEW_PLACE, required=False)
    _: KW_ONLY
    broker_name: str = option("Name of the store's broker (with --store).", default="")
    topics: str | Sequence[str] = option(_TOPIC, "--topic", default=(), many=True)


@job_options
class _UpkeepOptions:
    """Options that all upkeep jobs share."""

    archive: str | Path = option("Directory or URL of the archive.", "archive", form=OLD_PLACE)
    _: KW_ONLY
    dry_run: bool = option("Print what would be done, without changing anything.", default=False)
    storage: Mapping[str, str] | None = option(STORAGE_HELP, default=None, form=STORAGE_SETTINGS, secret=True)
    clock: Clock = argument("the clock", default=SYSTEM_CLOCK)


@job_options
class CompactOptions(_UpkeepOptions, SparkOptions):
    """Join small files while readers and an archive job may be running.

    Exit codes: 0 done; 1 failed, commits are kept; 2 usage error; 3 partly done: stopped before its end.
    """

    _: KW_ONLY
    topics: Sequence[str] = option("Process only this topic. May be repeated.", "--topic", default=(), many=True)
    target_bytes: int = option("Join files up to this size in MiB.", "--target-mb", default=128 << 20, form=MEBIBYTES)
    settled_ms: int = option(
        "Join only hours that ended at least this long ago (30m, 1d).", "--settled", default=3_600_000, form=DURATION
    )
    on_step: OnStep = argument("called after each commit", default=_silent)
    stop: threading.Event | None = argument("event that ends the run after the current commit", default=None)


@job_options
class ExpireOptions(_UpkeepOptions):
    """Remove hours older than --keep from an archive.

    vacuum deletes their files later. Exit codes: 0 done; 1 failed; 2 usage error.
    """

    _: KW_ONLY
    keep_ms: int = option("Keep messages that are younger than this, such as 12h or 90d.", "--keep", form=DURATION)
    topics: Sequence[str] = option("Process only this topic. May be repeated.", "--topic", default=(), many=True)


@job_options
class VacuumOptions(_UpkeepOptions):
    """Delete files in an archive's directory that its table does not use.

    Exit codes: 0 done; 1 failed; 2 usage error.
    """

    _: KW_ONLY
    keep_ms: int = option(
        "Keep files that were compacted or expired within this time, for readers of older versions.",
        "--keep",
        default=7 * 24 * 3_600_000,
        form=DURATION,
    )


@job_options
class KeyIndexOptions(SparkOptions):
    """Index an archive by key, or find archived messages with a key.

    Each run indexes the new messages in the archive. Lookups do not need Spark.

    Exit codes: 0 done; 1 failed, or no message has the key; 2 usage error.
    """

    archive: str | Path = option("Directory or URL of the archive.", form=OLD_PLACE)
    index: str | Path = option("Directory or URL of the archive's index.", form=NEW_PLACE)
    _: KW_ONLY
    storage: Mapping[str, str] | None = option(STORAGE_HELP, default=None, form=STORAGE_SETTINGS, secret=True)
    dry_run: bool = option("Print how many messages would be indexed, without writing anything.", default=False)
    on_step: Tell = argument(_STEPS, default=_silent)


@job_options
class Selection:
    """Selects the messages in an archive that match all of the given conditions."""

    since_ms: int | None = option("Select messages stored at or after this time.", "--since", default=None, form=TIME)
    until_ms: int | None = option("Select messages stored before this time.", "--until", default=None, form=TIME)
    keys: tuple[str, ...] = option(
        "Select messages with this key or unique key. May be repeated.", "--key", default=(), many=True
    )
    tags: tuple[str, ...] = option("Select messages with this tag. May be repeated.", "--tag", default=(), many=True)
    where: str | None = option(
        "Select messages that match this Spark SQL predicate on the archive's columns.", default=None
    )


@job_options
class ReplayOptions(SparkOptions):
    """Send messages from an archive to a topic, and continue where the last run stopped.

    Exit codes: 0 done; 1 failed, sent messages are not sent again; 2 usage error; 3 partly done: stopped early, or
    there are warnings.
    """

    archive: str | Path = option("Directory or URL of the archive.", form=NEW_PLACE)
    namesrv: str = option(_NAMESRV, "-n", "--namesrv", form=NAMESRV)
    ledger: str | Path = option(
        "Directory or URL of the ledger, which records the replay's progress. The driver and executors must share a "
        "directory.",
        form=NEW_PLACE,
    )
    _: KW_ONLY
    topic: str | None = option("Topic to replay. It is optional if the archive contains only one topic.", default=None)
    to: str | None = option("Existing topic to send to. By default, it has the same name.", default=None)
    selection: Selection | None = options_from(Selection, "the messages to send; all by default", default=None)
    by_key: bool = option("Choose queues by key instead of keeping the original queues.", default=False)
    per_second: float | None = option(
        "Maximum number of messages per second, with a tolerance of 10 percent.", "--rate", default=None, form=POSITIVE
    )
    keep_born_time: bool = option(
        "Keep the messages' original born times, which is slower. By default, only REPLAY_ORIGIN contains them.",
        default=False,
    )
    translate_groups: Sequence[str] = option(
        "Comma-separated groups that continue in the new topic at their current position.", default=(), form=NAMES
    )
    groups_namesrv: str | None = option("Nameservers of these groups' brokers.  [default: --namesrv]", default=None)
    access: Mapping[str, str] | None = option(_ACCESS, default=None, form=ACCESS, secret=True)
    storage: Mapping[str, str] | None = option(STORAGE_HELP, default=None, form=STORAGE_SETTINGS, secret=True)
    groups_access: Mapping[str, str] | None = option(
        "Credentials and TLS for --groups-namesrv, if they differ from --access", default=None, form=ACCESS, secret=True
    )
    dry_run: bool = option("Print how much would be sent, without sending or writing anything.", default=False)
    step_offsets: int | None = option(
        "Number of offsets per step. The default depends on the rate.", "--step", default=None, form=whole(1)
    )
    timeout_ms: int = argument("maximum time in milliseconds until messages are acknowledged", default=120_000)
    on_step: OnStep = argument("called after each step", default=_silent)
    stop: threading.Event | None = argument(_STOP, default=None)


@job_options
class AuditOptions(SparkOptions):
    """Compare the produced, stored, consumed and archived messages of a topic, per queue and minute.

    Exit codes: 0 everything agrees; 1 failed; 2 usage error; 3 differences were found, and the report lists the first
    of each kind.
    """

    namesrv: str = option(_NAMESRV, "-n", "--namesrv", form=NAMESRV)
    topic: str = option("Topic to check.")
    _: KW_ONLY
    archive: str | Path | None = option("Directory or URL of the topic's archive.", default=None, form=NEW_PLACE)
    storage: Mapping[str, str] | None = option(STORAGE_HELP, default=None, form=STORAGE_SETTINGS, secret=True)
    groups: Sequence[str] = option(
        "Consumer group that consumes the topic. May be repeated.", "--group", default=(), many=True
    )
    trace_topic: str = option("Topic with the producers' traces.", default=TRACE_TOPIC)
    allow_duplicates: bool = option(
        "Report unique keys that are stored twice as notes instead of differences.", default=False
    )
    detail: str | Path | None = option(
        "New directory or URL for the counts per queue and minute, in Parquet format.", default=None, form=NEW_PLACE
    )
    access: Mapping[str, str] | None = option(_ACCESS, default=None, form=ACCESS, secret=True)
    on_step: Tell = argument(_STEPS, default=_silent)


# Jobs that look into messages ------------------------------------------------------------------------


@job_options
class TraceOptions(SparkOptions):
    """Evaluate the clients' message traces: latencies by topic and group, slow consumers, and the path of one message.

    Exit codes: 0 done; 1 failed, or the message has no trace; 2 usage error.
    """

    source: MessageSource = options_from(MessageSource, "brokers, or an archive that contains the trace topic")
    _: KW_ONLY
    trace_topic: str = option("Topic with the clients' traces.", default=TRACE_TOPIC)
    to: str | Path | None = option(
        "Write the joined rows to this new directory or URL in Parquet format.", default=None, form=NEW_PLACE
    )
    message_id: str | None = option(
        "Also show the path of the message with this unique key (the client's message id).", "--message", default=None
    )
    top: int = option("Number of slow consumers to list.", default=10, form=whole(1, 1000))
    on_step: Tell = argument(_STEPS, default=_silent)


@job_options
class DelayOptions(SparkOptions):
    """Show how late delayed messages were, when waiting messages are due, and which messages are stuck.

    Exit codes: 0 done; 1 failed; 2 usage error; 3 something is stuck.
    """

    source: MessageSource = options_from(
        MessageSource,
        "brokers, a store, or an archive that also contains the topics with waiting messages. With ``begin_ms``, only "
        "messages that were delivered or due since then count; ``end_ms`` is the time of the report",
    )
    topics: Sequence[str] = option(
        "Topic to report on. By default, all topics except system topics.", "--topic", default=(), many=True
    )
    _: KW_ONLY
    delay_levels: str | None = option("messageDelayLevel of the brokers that wrote the archive or store.", default=None)
    grace_ms: int = option(
        "Seconds past the due time after which a message counts as stuck.", "--grace", default=60_000, form=SECONDS
    )
    days: int = option("Number of days in the histogram of due times.", default=7, form=whole(1, MAX_DAYS))
    top: int = option("Maximum number of topics and messages to list.", default=20, form=whole(1, 10_000))
    on_step: Tell = argument(_STEPS, default=_silent)
    clock: Clock = argument("the clock for a source of brokers", default=SYSTEM_CLOCK)


KEYS: Final = ("keys", "shardingKey", "tags")
"""Fields that can be used as a message's key. If a message has several KEYS, each of them counts."""


@job_options
class SkewOptions(SparkOptions):
    """Show hot keys and how unevenly queues are filled, and recommend the number of queues.

    Exit codes: 0 done; 1 failed; 2 usage error.
    """

    source: MessageSource = options_from(MessageSource, "brokers, an archive or a store")
    topics: str | Sequence[str] = option(_TOPIC, "--topic", many=True)
    _: KW_ONLY
    by: str = option("Field to use as a message's key.", default=KEYS[0], form=one_of(*KEYS))
    top: int = option("Number of hot keys to list.", default=20, form=whole(1, 10_000))
    consumers: int = option("Number of consumers in the largest group.", default=1, form=whole(1))
    handled_per_s: float = option(
        "Messages per second that a consumer processes from one queue.", "--handled", default=1000.0, form=POSITIVE
    )
    on_step: Tell = argument(_STEPS, default=_silent)


@job_options
class DeadLetterOptions(SparkOptions):
    """Count dead letters by group, original topic, tag, key and time, and resend them.

    Exit codes: 0 done; 1 failed, or no dead letter could be sent again; 2 usage error; 3 some could not be sent again.
    """

    source: MessageSource = options_from(MessageSource, "brokers, an archive or a store")
    groups: Sequence[str] = option(
        "Consumer group. By default, all groups that have dead letters.", "--group", default=(), many=True
    )
    _: KW_ONLY
    selection: DeadLetterSelection | None = argument("the chosen dead letters; by default all", default=None)
    reason: str | None = option(
        "Also count by this property, in which the application stores the reason for a failure.", default=None
    )
    top: int = option("Maximum number of topics, tags and keys to list.", default=20, form=whole(1, 10_000))
    on_step: Tell = argument(_STEPS, default=_silent)


@job_options
class SendAgainOptions:
    """Send chosen dead letters again."""

    namesrv: str = argument("nameservers, ``host:port`` separated by semicolons")
    groups: Sequence[str] = argument("consumer groups")
    selection: DeadLetterSelection = argument("the chosen dead letters")
    _: KW_ONLY
    ledgers: Path = option(
        "Directory of the ledger dlq-GROUP.ledger, which cometmq dlq resend also uses (with --resend).",
        default=Path(),
        form=DIRECTORY,
    )
    rate: float | None = option("Maximum number of messages per second (with --resend).", default=None, form=POSITIVE)
    dry_run: bool = option("Only print how many messages would be sent (with --resend).", default=False)
    access: Mapping[str, str] | None = argument("credentials and TLS, as options of the source", default=None)
    on_step: Tell = argument(_STEPS, default=_silent)


# Jobs that make something anew -----------------------------------------------------------------------


@job_options
class CopyOptions(SparkOptions):
    """Options that apply to both kinds of masked copies."""

    _: KW_ONLY
    keys: str | Path | None = option(
        "Local file for the subjects' keys, an SQLite database, which rules that encrypt require. Created if missing.",
        default=None,
        form=KEY_STORE,
    )
    master_key_file: str | Path | None = option(
        "File with the base64 master key.  [default: $COMETMQ_MASK_MASTER_KEY]", default=None, form=FILE
    )
    hash_secret_file: str | Path | None = option(
        "File with the secret for hashes.  [default: $COMETMQ_MASK_HASH_SECRET]", default=None, form=FILE
    )
    dry_run: bool = option("Show counts and masked samples, without writing anything.", default=False)
    samples: int = option("Number of messages to show (with --dry-run).", default=3, form=whole(0, 100))
    step_offsets: int = option(
        "Number of offsets per step. A step is repeated after a crash.", "--step", default=200_000, form=whole(1)
    )
    on_step: OnStep = argument("called after each step", default=_silent)
    stop: threading.Event | None = argument(_STOP, default=None)


@job_options
class MaskOptions(CopyOptions):
    """Copy topics with fields dropped, masked, hashed or encrypted.

    The copy is an archive (--to-archive) or another topic (--to). The same command continues where the last run
    stopped. Exit codes: 0 done; 1 failed, copied messages are kept; 2 usage error; 3 partly done: stopped early, or
    some messages could not be masked and were not copied.
    """

    source: MessageSource = options_from(
        MessageSource, "brokers, an archive or a store; with times, only messages stored between them are copied"
    )
    topics: str | Sequence[str] = option(_TOPIC, "--topic", many=True)
    rules: MaskRules = argument("result of ``rules_from_toml`` or ``rules_from_options``")
    to: str | Path = option("Directory or URL of the copy.", "--to-archive", form=NEW_PLACE, required=False)
    _: KW_ONLY
    table_format: TableFormat | str | None = options_from(
        TableOptions, "format for a new copy: its name, or a TableFormat", default=None
    )


@job_options
class MaskToTopicOptions(CopyOptions):
    """Copy one topic into another with fields masked."""

    source: MessageSource = argument("see ``mask``")
    topic: str = argument("the topic")
    rules: MaskRules = argument("see ``mask``")
    work: str | Path = option(
        "Directory or URL for the masked messages and the replay's ledger (with --to).", form=NEW_PLACE, required=False
    )
    namesrv: str = option("Target nameservers (with --to).  [default: --namesrv]", "--to-namesrv", required=False)
    to: str = option("Existing topic to which the copy of one topic is sent (with --work).", required=False)
    _: KW_ONLY
    by_key: bool = option("Choose queues by key instead of keeping the original queues (with --to).", default=False)
    per_second: float | None = option(
        "Maximum number of messages per second (with --to).", "--rate", default=None, form=POSITIVE
    )
    to_access: Mapping[str, str] | None = option(
        "Credentials and TLS for --to, if they differ from --access", default=None, form=ACCESS, secret=True
    )


@job_options
class RebuildOptions(SparkOptions):
    """Rebuild a store's consume queues and index from its log, byte for byte as a broker writes them.

    The old files are moved to comet/quarantine in the store. Exit codes: 0 done, or no difference; 1 failed, or
    (--dry-run) queues differ from the log; 2 usage error.
    """

    store: str | Path = option("Directory of the store, which no broker may be using.", form=OLD_DIRECTORY)
    _: KW_ONLY
    dry_run: bool = option("Only compare the consume queues with the log.", default=False)
    config: StoreConfig | Path | None = option(
        "The broker's broker.conf, from which delay levels and file sizes are read.", default=None, form=FILE
    )
    bad_records_path: str | Path | None = option(
        "Directory for damaged records, which are skipped. If not set, the job fails at the first damaged record.",
        "--bad-records",
        default=None,
        form=DIRECTORY,
    )
    on_step: Tell = argument(_STEPS, default=_silent)
