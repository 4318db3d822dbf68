"""Options of object stores, for everything in Spark that reads or writes a URL.

An option such as ``storage.endpoint`` overrides the Hadoop configuration of the session
(``spark.hadoop.fs.s3a.endpoint``), which overrides the environment of each process. Executors receive the options with
their tasks. The names of secret options match Spark's default ``spark.redaction.regex``, so Spark shows none of their
values in plans or event logs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from cometmq import options
from cometmq.options import options_of
from cometmq.paths import PathError
from cometmq.spark.errors import OptionError
from cometmq.spark.options import STORAGE
from cometmq.storage import Location, Storage, StorageOptions, open_storage
from cometmq.storage.hadoop import options_from_hadoop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STORAGE_OPTION_NAMES: Final = tuple(f"{STORAGE}{name}" for name in options_of(StorageOptions))


def parse_storage(values: Mapping[str, str]) -> StorageOptions:
    """Parse the options that begin with ``storage.``; other options are ignored.

    :raises OptionError: an option is unknown or has an invalid value.
    """
    texts = {name.removeprefix(STORAGE): text for name, text in values.items() if name.startswith(STORAGE)}
    try:
        return StorageOptions.from_texts(texts)
    except options.OptionError as error:
        option = f"{STORAGE}{error.option}" if error.option else ""
        raise OptionError(error.reason, option=option, next_step=error.next_step) from error


def storage_options(
    url: str | os.PathLike[str], given: Mapping[str, str] | None = None, *, spark: SparkSession | None = None
) -> dict[str, str]:
    """Return the options for a URL as options of a source: the given ones, and those in the Hadoop configuration of the
    session. A local path has none.

    :param given: options by their names with or without ``storage.``, such as ``endpoint``.
    :param spark: the session; by default the active one, if any.
    :raises OptionError: an option is unknown or has an invalid value.
    :raises PathError: the URL has an unknown scheme, or is incomplete.
    """
    named = {f"{STORAGE}{name.removeprefix(STORAGE)}": text for name, text in (given or {}).items()}
    found = parse_storage(named)
    location = Location.parse(url)
    if location.kind == "local":
        return {}
    if spark is None:
        from pyspark.sql import SparkSession

        spark = SparkSession.getActiveSession()
    if spark is not None:
        found = found.over(options_from_hadoop(location, _hadoop_lookup(spark)))
    return {f"{STORAGE}{name}": text for name, text in found.texts().items()}


def open_place(url: str | os.PathLike[str], given: Mapping[str, str] | None = None) -> Storage:
    """Open the storage at a path or URL, with the options that :func:`storage_options` returns.

    :raises OptionError: an option is unknown or has an invalid value.
    :raises PathError: the URL has an unknown scheme, or is incomplete.
    """
    return open_storage(url, parse_storage(storage_options(url, given)))


def open_file_place(url: str | os.PathLike[str], given: Mapping[str, str] | None = None) -> tuple[Storage, str]:
    """Open the storage that holds the file at a path or URL. Return it with the file's key.

    :raises OptionError: an option is unknown or has an invalid value.
    :raises PathError: the URL has an unknown scheme, or names no file.
    """
    location = Location.parse(url)
    directory, _, name = location.path.rpartition("/")
    if not name:
        raise PathError(f"{url} names no file", next_step="add the name of a file")
    options = parse_storage(storage_options(url, given))
    return open_storage(location.at(directory or ("/" if location.kind == "local" else "")), options), name


def _hadoop_lookup(spark: SparkSession) -> Any:
    """Return a function that looks up Hadoop keys: in a classic session also those in ``core-site.xml``; Connect
    provides only the keys of the Spark configuration.
    """
    jsc = getattr(spark, "_jsc", None)
    if jsc is not None:
        return jsc.hadoopConfiguration().get
    return lambda key: spark.conf.get(f"spark.hadoop.{key}", None)
