"""PySpark over RocketMQ: the data source ``format("rocketmq")`` and the pipeline jobs.

Programs and notebooks import from this package: ``from cometmq.spark import archive, local_session``. Importing
this package is cheap: PySpark and PyArrow are loaded when a name is first used.

* ``source``: ``format("rocketmq")`` for batches and streams; ``data_source`` contains the classes that Spark loads
* ``sink``: ``df.write.format("rocketmq")``
* ``store``: ``format("rocketmq_store")``, which reads a store's files
* ``records``: stored records as Arrow columns
* ``archives``: an archive's files and commits, in three formats
* ``storage``: file access for archives, ledgers, key indexes, bad records and reports
* ``object_stores``: endpoints and credentials of object stores, from options and the session
* ``bodies``: column functions for Avro, Protobuf, JSON and text bodies
* ``session``: Spark's requirements, and ``local_session()``
* ``jobs``: the jobs of ``cometmq pipeline``, each in a folder or module of its own

``docs/spark.md`` documents the source and its options; ``docs/spark-jobs.md`` and the pages it links to document the
jobs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from cometmq.errors import SPARK, SPARK_MODULES, require

if TYPE_CHECKING:
    from cometmq.spark.archives.log import ArchiveLog as ArchiveLog
    from cometmq.spark.archives.log import read_archive as read_archive
    from cometmq.spark.jobs.archive.from_store import archive_store as archive_store
    from cometmq.spark.jobs.archive.job import archive as archive
    from cometmq.spark.jobs.archive.upkeep import compact as compact
    from cometmq.spark.jobs.archive.upkeep import expire as expire
    from cometmq.spark.jobs.archive.upkeep import vacuum as vacuum
    from cometmq.spark.jobs.audit.job import audit as audit
    from cometmq.spark.jobs.dead_letters import dead_letters as dead_letters
    from cometmq.spark.jobs.dead_letters import send_again as send_again
    from cometmq.spark.jobs.delay.job import delay as delay
    from cometmq.spark.jobs.key_index import build_key_index as build_key_index
    from cometmq.spark.jobs.key_index import find_by_key as find_by_key
    from cometmq.spark.jobs.mask.job import mask as mask
    from cometmq.spark.jobs.mask.job import mask_to_topic as mask_to_topic
    from cometmq.spark.jobs.mask.keys import MASTER_VARIABLE as MASTER_VARIABLE
    from cometmq.spark.jobs.mask.keys import KeyStore as KeyStore
    from cometmq.spark.jobs.mask.keys import Revealer as Revealer
    from cometmq.spark.jobs.mask.keys import master_key_place as master_key_place
    from cometmq.spark.jobs.mask.keys import revealed_messages as revealed_messages
    from cometmq.spark.jobs.mask_rules import rules_from_options as rules_from_options
    from cometmq.spark.jobs.mask_rules import rules_from_toml as rules_from_toml
    from cometmq.spark.jobs.message_source import MessageSource as MessageSource
    from cometmq.spark.jobs.options import Selection as Selection
    from cometmq.spark.jobs.rebuild.job import rebuild as rebuild
    from cometmq.spark.jobs.replay.job import replay as replay
    from cometmq.spark.jobs.skew import skew as skew
    from cometmq.spark.jobs.table.job import fresh_table as fresh_table
    from cometmq.spark.jobs.trace import trace as trace
    from cometmq.spark.object_stores import storage_options as storage_options
    from cometmq.spark.session.environment import local_session as local_session
    from cometmq.spark.source.lag import LagListener as LagListener
    from cometmq.spark.source.lag import lag_now as lag_now
    from cometmq.spark.source.lag import lag_of as lag_of
    from cometmq.spark.source.offsets import kept_starting_offsets as kept_starting_offsets

_NAMES: Final = {
    "archives.log": "ArchiveLog read_archive",
    "jobs.archive.from_store": "archive_store",
    "jobs.archive.job": "archive",
    "jobs.archive.upkeep": "compact expire vacuum",
    "jobs.audit.job": "audit",
    "jobs.dead_letters": "dead_letters send_again",
    "jobs.delay.job": "delay",
    "jobs.key_index": "build_key_index find_by_key",
    "jobs.mask.job": "mask mask_to_topic",
    "jobs.mask.keys": "KeyStore MASTER_VARIABLE Revealer master_key_place revealed_messages",
    "jobs.mask_rules": "rules_from_options rules_from_toml",
    "jobs.message_source": "MessageSource",
    "jobs.options": "Selection",
    "jobs.rebuild.job": "rebuild",
    "jobs.replay.job": "replay",
    "jobs.skew": "skew",
    "jobs.table.job": "fresh_table",
    "jobs.trace": "trace",
    "object_stores": "storage_options",
    "session.environment": "local_session",
    "source.lag": "LagListener lag_now lag_of",
    "source.offsets": "kept_starting_offsets",
}
"""The public names that each module exports, by module."""
_MODULES: Final = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    """Import the module that defines a public name, and return the object.

    :raises AttributeError: the name is unknown.
    :raises MissingPackageError: PySpark, or a package that it needs, is not installed.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require(__name__, SPARK, *SPARK_MODULES)
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
