"""Encrypted values of a masked copy made readable again, for who holds master key and keys.

What is revealed is one message or one line at a time; a value whose key was dropped stays as it is, and is counted. A
message with a value that was changed goes apart: nothing of it is shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cometmq.message.properties import KEY_SEPARATOR
from cometmq.spark.apart import Apart
from cometmq.spark.archive_log import ArchiveLog
from cometmq.spark.mask_cipher import ErasedError, KeyOf, is_sealed, opened


class Revealer:
    """Opens what is encrypted, and counts.

    :param key_of: the key with an id, such as :meth:`KeyStore.key_of <cometmq.spark.mask_keys.KeyStore.key_of>`.
    """

    def __init__(self, key_of: KeyOf) -> None:
        self._key_of = key_of
        self.opened = 0
        self.erased = 0
        """Values whose key is not there any more."""

    def value(self, value: Any) -> Any:
        """A JSON value with everything in it opened.

        :raises ValueError: an encrypted value was changed.
        """
        holder = [value]
        places: list[tuple[Any, Any]] = [(holder, 0)]
        while places:  # no recursion: bodies may be nested deeper than Python's stack
            container, key = places.pop()
            found = self._one(container[key])
            if isinstance(found, dict | list):
                found = found.copy()
                places += ((found, inner) for inner in (found if isinstance(found, dict) else range(len(found))))
            container[key] = found
        return holder[0]

    def _one(self, value: Any) -> Any:
        if not is_sealed(value):
            return value
        try:
            found = opened(value, self._key_of)
        except ErasedError:
            self.erased += 1
            return value
        self.opened += 1
        return found

    def text(self, text: str) -> str:
        """A property with everything in it opened; words are opened one by one, as KEYS are masked."""
        words = [self.value(word) for word in text.split(KEY_SEPARATOR)]
        return KEY_SEPARATOR.join(word if isinstance(word, str) else json.dumps(word) for word in words)

    def body(self, body: bytes) -> str:
        """A body as text, with everything in it opened."""
        text = body.decode("utf-8", "replace")
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            return text
        found = self.value(document)
        return found if isinstance(found, str) and is_sealed(document) else json.dumps(found, ensure_ascii=False)


def revealed_messages(
    archive: str | Path, revealer: Revealer, topics: Sequence[str] = (), *, apart: Callable[[Apart], object]
) -> Iterator[dict[str, Any]]:
    """The messages of a masked archive with everything in them opened, file by file; no Spark.

    :param apart: told of each message that is left out, since an encrypted value in it was changed.
    :raises OptionError: there is no archive, or none of a topic.
    """
    import pyarrow.parquet as pq

    columns = ["topic", "brokerName", "queueId", "queueOffset", "tags", "keys", "properties", "body"]
    log = ArchiveLog(archive)
    log.demand_any(topics)
    for file in log.files():
        if topics and file.topic not in topics:
            continue
        with pq.ParquetFile(log.root / file.path) as parquet:
            for batch in parquet.iter_batches(batch_size=1024, columns=columns):
                for row in batch.to_pylist():
                    counts = (revealer.opened, revealer.erased)
                    try:
                        found = _revealed(row, revealer)
                    except ValueError as error:
                        revealer.opened, revealer.erased = counts
                        apart(Apart(row["topic"], row["brokerName"], row["queueId"], row["queueOffset"], str(error)))
                    else:
                        yield found


def _revealed(row: dict[str, Any], revealer: Revealer) -> dict[str, Any]:
    properties = {name: revealer.text(value) for name, value in row["properties"]}
    found = row | {"properties": properties, "body": revealer.body(row["body"])}
    for name, key in (("tags", "TAGS"), ("keys", "KEYS")):
        found[name] = properties.get(key)
    return found
