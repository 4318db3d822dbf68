"""The executors' part of the mask job: it masks rows from a source, and writes them to files of an archive.

The masked message is encoded as a stored record and decoded again, so that all columns of the archive describe only the
masked message: body, its CRC, sizes, keys, tags, properties and their text. A message that cannot be masked safely is
never copied: instead, its position in the source and the reason are written as a line of JSON, without its content.
JSON bodies are always re-encoded. If several members have the same name, rules apply only to the last one, and only the
last one is kept.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from cometmq.archive.files import DataFile
from cometmq.message.properties import KEY_SEPARATOR, KEYS, decode_properties, join_properties
from cometmq.message.sysflag import COMPRESSED, COMPRESSION_TYPE_MASK
from cometmq.spark.archives.files import QueueWriter, Uploads
from cometmq.spark.archives.log import encode_row
from cometmq.spark.errors import MaskError
from cometmq.spark.jobs.mask.keys import (
    KEY_BYTES,
    KEY_ID_BYTES,
    DataKey,
    KeyStore,
    SecretPlace,
    digest,
    sealed,
    subject_text,
)
from cometmq.spark.jobs.mask_rules import DROP, ENCRYPT, FAIL, HASH, MASK, JsonPath, MaskRules, Place, Rule, parse_path
from cometmq.spark.records.bad_messages import BadMessageFiles
from cometmq.spark.records.columns import ARCHIVE_COLUMNS, arrow_schema
from cometmq.spark.records.decode import Records, decode
from cometmq.spark.records.queues import Queue
from cometmq.storage import Storage

STAR: Final = "*"
NOTHING: Final = b"null"
"""The body that replaces a dropped body. It is JSON and not empty, since RocketMQ rejects empty bodies."""

KeysFor = Callable[[Iterable[str]], Mapping[str, DataKey | None]]


class Plain(NamedTuple):
    """The parts of a message that rules can mask."""

    body: bytes
    properties_text: str


class RefusedError(Exception):
    """A message cannot be masked. The error text states the reason and contains nothing from the message."""


class _Wanted(NamedTuple):
    depth: int
    """Steps of the path that leads to the value."""
    place: Place
    rule: Rule
    subject: str | None


class Masker:
    """Applies rules to batches of messages. All keys for a batch are fetched at the same time.

    :param keys_for: function that returns the subjects' keys, for ``encrypt``.
    :param hash_secret: secret for ``hash``; not needed for other actions.
    """

    def __init__(self, rules: MaskRules, keys_for: KeysFor, hash_secret: bytes | None) -> None:
        self._rules = rules
        self._in_json = sorted(rules.in_json, key=lambda of: len(of[1].steps), reverse=True)
        self._of_properties = rules.of_properties
        self._of_body = rules.of_body
        self._subjects = {rule.subject: parse_path(rule.subject) for rule in rules.rules if rule.subject is not None}
        self._keys_for = keys_for
        self._hash_secret = hash_secret
        self.counts: Counter[str] = Counter()
        """Number of masked values, by the rule's field."""

    def masked(self, messages: Iterable[Plain]) -> list[Plain | RefusedError]:
        """Mask messages. Each result is the masked message, or the reason why the message cannot be masked."""
        begun = [self._begin(message) for message in messages]
        subjects = {
            subject for one in begun if isinstance(one, _Begun) for subject in one.subjects() if subject is not None
        }
        keys = self._keys_for(subjects) if subjects else {}
        return [one if isinstance(one, RefusedError) else self._finish(one, keys) for one in begun]

    # First pass: nothing is changed ------------------------------------------------------------------

    def _begin(self, message: Plain) -> _Begun | RefusedError:
        properties = decode_properties(message.properties_text)
        document: Any = None
        is_json = False
        if self._rules.needs_json:
            try:
                document, is_json = _parsed(message.body), True
            except RefusedError as error:
                if self._rules.not_json != DROP:
                    return error
        try:
            wanted = self._places(document) if is_json else []
            of_properties = {
                name: self._subject(rule, document, ())
                for name, rule in self._of_properties.items()
                if properties.get(name)
            }
            of_body = self._subject(self._of_body, document, ()) if self._of_body is not None else None
        except RefusedError as error:
            return error
        return _Begun(message, properties, document, is_json, wanted, of_properties, of_body)

    def _places(self, document: Any) -> list[_Wanted]:
        return [
            _Wanted(len(path.steps), place, rule, self._subject(rule, document, place.indices))
            for rule, path in self._in_json
            for place in path.places(document)
            if place.value is not None
        ]

    def _subject(self, rule: Rule, document: Any, indices: tuple[int, ...]) -> str | None:
        if rule.subject is None:
            return None
        path: JsonPath = self._subjects[rule.subject]
        text = subject_text(path.at(document, indices[: len(path.wildcards)]))
        if text is None:
            raise RefusedError(f"missing subject {rule.subject}")
        return text

    # Then everything at once -------------------------------------------------------------------------

    def _finish(self, begun: _Begun, keys: Mapping[str, DataKey | None]) -> Plain | RefusedError:
        try:
            return Plain(self._body(begun, keys), self._properties(begun, keys))
        except RefusedError as error:
            return error
        except RecursionError:
            return RefusedError("its body is nested too deeply")

    def _body(self, begun: _Begun, keys: Mapping[str, DataKey | None]) -> bytes:
        if self._of_body is not None:
            return self._whole_body(begun, self._of_body, keys)
        if not self._in_json:
            return begun.message.body
        if not begun.is_json:
            return NOTHING
        # Inner fields first: a value that one rule removes must not be in the result of a rule for the whole field.
        for _, wanted in groupby(begun.wanted, key=lambda one: one.depth):
            gone: list[Place] = []
            for _, place, rule, subject in wanted:
                self.counts[rule.field] += 1
                value = self._value(rule, place.value, keys.get(subject) if subject is not None else None)
                if value is _GONE:
                    gone.append(place)
                else:
                    place.container[place.key] = value
            _remove(gone)
        return _written(begun.document)

    def _whole_body(self, begun: _Begun, rule: Rule, keys: Mapping[str, DataKey | None]) -> bytes:
        self.counts[rule.field] += 1
        if rule.action == DROP:
            return NOTHING
        text = begun.message.body.decode("utf-8", "surrogateescape")
        value = self._value(rule, text, keys.get(begun.of_body) if begun.of_body is not None else None)
        return NOTHING if value is _GONE else json.dumps(value).encode()

    def _properties(self, begun: _Begun, keys: Mapping[str, DataKey | None]) -> str:
        if not self._of_properties:
            return begun.message.properties_text
        properties = dict(begun.properties)
        for name, subject in begun.of_properties.items():
            rule = self._of_properties[name]
            key = keys.get(subject) if subject is not None else None
            parts = properties[name].split(KEY_SEPARATOR) if name == KEYS else [properties[name]]
            masked = [self._value(rule, part, key) for part in parts if part]
            self.counts[rule.field] += len(masked)
            left = KEY_SEPARATOR.join(part for part in masked if part is not _GONE)
            if left:
                properties[name] = left
            else:
                del properties[name]
        return join_properties(properties)

    def _value(self, rule: Rule, value: Any, key: DataKey | None) -> Any:
        """Return a value's replacement, or ``_GONE`` if the value is to be removed."""
        match rule.action:
            case action if action == MASK:
                return _starred(value, rule.keep_first, rule.keep_last)
            case action if action == HASH:
                assert self._hash_secret is not None, "the job reads it if a rule hashes"
                return digest(self._hash_secret, value if isinstance(value, str) else _canonical(value))
            case action if action == ENCRYPT and key is not None:
                return sealed(value, key)
        return _GONE  # also what would be encrypted for a subject that is erased


class _Begun(NamedTuple):
    """A message whose body and properties are parsed."""

    message: Plain
    properties: dict[str, str]
    document: Any
    is_json: bool
    wanted: list[_Wanted]
    of_properties: dict[str, str | None]
    """Return the subjects for the properties that are masked, by property name."""
    of_body: str | None

    def subjects(self) -> Iterator[str | None]:
        """Return the subjects whose keys are needed for this message."""
        yield self.of_body
        yield from self.of_properties.values()
        for wanted in self.wanted:
            yield wanted.subject


_GONE: Final = object()


def _remove(places: Iterable[Place]) -> None:
    """Remove values. Elements of arrays are removed from the last to the first, so that the other
    indices stay valid.
    """
    arrays: dict[int, tuple[Any, set[int]]] = {}
    for place in places:
        if isinstance(place.container, dict):
            place.container.pop(place.key, None)
        else:
            arrays.setdefault(id(place.container), (place.container, set()))[1].add(place.key)
    for array, indices in arrays.values():
        for index in sorted(indices, reverse=True):
            del array[index]


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body.decode("utf-8"), parse_float=_exact, parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise RefusedError("its body is not JSON") from error


def _exact(text: str) -> float:
    """Parse a JSON number, and check that it can be written back unchanged.

    :raises RefusedError: the number has more digits than a double.
    """
    from decimal import Decimal, InvalidOperation

    number = float(text)
    try:
        is_exact = number not in (float("inf"), float("-inf")) and Decimal(repr(number)) == Decimal(text)
    except InvalidOperation:  # an exponent that no decimal has either
        is_exact = False
    if not is_exact:
        raise RefusedError("its body has a number with too many digits")
    return number


def _refused(_: str) -> float:
    raise RefusedError("its body is not JSON")


def _written(document: Any) -> bytes:
    try:
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can only say with an escape
        return json.dumps(document, separators=(",", ":")).encode()


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _starred(value: Any, first: int, last: int) -> Any:
    """Replace all characters in a text with stars, except a few at the ends. In arrays and objects, do this for each
    value.
    """
    if isinstance(value, dict):
        return {name: _starred(inner, first, last) for name, inner in value.items()}
    if isinstance(value, list):
        return [_starred(inner, first, last) for inner in value]
    if value is None:
        return None
    text = value if isinstance(value, str) else _canonical(value)
    if len(text) <= first + last:
        return STAR * max(1, len(text))
    return text[:first] + STAR * (len(text) - first - last) + text[len(text) - last :]


APART: Final = "_mask/apart"
"""Directory for the messages that were not copied, below the copy's directory."""
MASKED_COLUMNS: Final = (
    *("topic", "brokerName", "queueId", "queueOffset", "physicalOffset", "body", "propertiesText", "flag", "sysFlag"),
    *("bornTimestamp", "bornHost", "storeTimestamp", "storeHost", "reconsumeTimes", "preparedTransactionOffset"),
)
"""Columns from which a stored message is rebuilt."""
_WRITTEN_ROWS: Final = 4096
"""Number of messages that are masked in one batch. Their keys are fetched together."""
_WRITTEN_BYTES: Final = 8 * 1024 * 1024
"""Number of record bytes that are decoded and written together. A single record may be larger."""
_UNREADABLE: Final = RefusedError("its body cannot be decompressed")


@dataclass(frozen=True, slots=True)
class MaskTask:
    """The settings that every task needs. They contain the locations of secrets, but no secrets."""

    place: Storage | None
    """Place of the copy. If it is not set, messages are only masked and counted."""
    rules: MaskRules
    keys: str | None
    """File that stores the keys, if a rule encrypts. If it is not set, values are encrypted with temporary keys."""
    master: SecretPlace
    hash_secret: SecretPlace
    epoch: int = 0
    """Epoch of the job, which the names of its files contain."""

    @contextmanager
    def uploads(self) -> Iterator[Uploads | None]:
        """Yield the place for the copy's files, or None if messages are only counted."""
        if self.place is None:
            yield None
            return
        with Uploads(self.place, self.epoch) as uploads:
            yield uploads

    @contextmanager
    def masker(self) -> Iterator[Masker]:
        """Yield this process's masker. The key file is open within the block.

        :raises OptionError: a secret is missing.
        :raises MaskError: the keys cannot be opened.
        """
        secret = self.hash_secret.read() if HASH in self.rules.actions else None
        if ENCRYPT not in self.rules.actions or self.keys is None:
            yield Masker(self.rules, _passing_keys, secret)
            return
        with closing(KeyStore(self.keys, self.master, make=True)) as store:
            yield Masker(self.rules, store.keys_for, secret)


def _passing_keys(subjects: Iterable[str]) -> dict[str, DataKey | None]:
    """Create temporary keys, which are not stored."""
    return {subject: DataKey(os.urandom(KEY_ID_BYTES), os.urandom(KEY_BYTES)) for subject in subjects}


class MaskResult(msgspec.Struct, frozen=True):
    """One result of a task: a file that it wrote, or its counts."""

    file: DataFile | None = None
    messages: int = 0
    """Number of messages that the task has masked."""
    values: dict[str, int] | None = None
    """Number of masked values, by the rule's field."""
    apart: dict[str, int] | None = None
    """Number of messages that are not in the copy, by reason."""


def mask_batches(task: MaskTask, batches: Iterable[pa.RecordBatch]) -> list[MaskResult]:
    """Mask and write the rows of one Spark partition. Return the files and the counts.

    :raises MaskError: a message cannot be masked, and the rules do not allow the job to leave it out.
    """
    with task.masker() as masker, task.uploads() as uploads:
        return _run(task, masker, batches, _Writing(uploads, task.place))


def _run(task: MaskTask, masker: Masker, batches: Iterable[pa.RecordBatch], writing: _Writing) -> list[MaskResult]:
    messages = 0
    refused: dict[str, int] = {}
    for batch in batches:
        for first in range(0, batch.num_rows, _WRITTEN_ROWS):
            rows = _rows(batch.slice(first, _WRITTEN_ROWS))
            readable = (row for row in rows if row["body"] is not None)
            outcomes = iter(masker.masked(Plain(row["body"], row["propertiesText"] or "") for row in readable))
            for row in rows:
                reason = writing.add(row, _UNREADABLE if row["body"] is None else next(outcomes))
                if reason is None:
                    messages += 1
                    continue
                refused[reason] = refused.get(reason, 0) + 1
                if task.rules.not_json == FAIL:
                    raise MaskError(
                        f"the message at offset {row['queueOffset']} of queue {row['queueId']} of {row['topic']} at "
                        f"{row['brokerName']} cannot be masked: {reason}",
                        next_step="leave out such messages (--not-json apart), or copy them without their body (drop)",
                    )
    results = [MaskResult(file=file) for file in writing.close()]
    return [*results, MaskResult(messages=messages, values=dict(masker.counts), apart=refused)]


def _rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows with times in ms, since a producer may send a born time that Python's dates cannot represent."""
    columns = {name: batch.column(name) for name in MASKED_COLUMNS}
    for name in ("bornTimestamp", "storeTimestamp"):
        columns[name] = columns[name].cast(pa.int64())
    rows: list[dict[str, Any]] = pa.RecordBatch.from_pydict(columns).to_pylist()
    for row in rows:
        row["bornTimestamp"] //= 1000
        row["storeTimestamp"] //= 1000
    return rows


class _Writing:
    """Splits rows into runs: rows from one queue with rising offsets. Each run has its own writer."""

    def __init__(self, uploads: Uploads | None, place: Storage | None) -> None:
        self._uploads = uploads
        self._schema = arrow_schema(ARCHIVE_COLUMNS)
        self._queue: Queue | None = None
        self._last = -1
        self._writer: QueueWriter | None = None
        self._records: list[bytes] = []
        self._bytes = 0
        self._apart = BadMessageFiles(None if place is None else place.below(APART))
        self._files: list[DataFile] = []

    def add(self, row: dict[str, Any], outcome: Plain | RefusedError) -> str | None:
        """Write a message, or return the reason why it is left out."""
        queue = Queue(row["topic"], row["brokerName"], row["queueId"])
        if queue != self._queue or row["queueOffset"] <= self._last:
            self._end()
            self._queue = queue
            self._writer = None if self._uploads is None else QueueWriter(self._uploads, queue, self._schema)
        self._last = row["queueOffset"]
        if isinstance(outcome, Plain):
            try:
                sys_flag = row["sysFlag"] & ~(COMPRESSED | COMPRESSION_TYPE_MASK)
                record = encode_row(row, outcome.body, outcome.properties_text, sys_flag)
            except ValueError:
                outcome = RefusedError("its properties are too long after masking")
            else:
                self._records.append(record)
                self._bytes += len(record)
                if len(self._records) >= _WRITTEN_ROWS or self._bytes >= _WRITTEN_BYTES:
                    self._flush()
                return None
        self._apart.add(queue, self._last, str(outcome))
        return str(outcome)

    def _flush(self) -> None:
        if self._records and self._writer is not None and self._queue is not None:
            records = Records(b"".join(self._records))
            for batch in decode(records, self._schema, broker_name=self._queue.broker):
                self._writer.add(batch)
        self._records, self._bytes = [], 0

    def _end(self) -> None:
        self._flush()
        self._apart.flush()
        if self._writer is not None:
            self._files += self._writer.close()

    def close(self) -> list[DataFile]:
        """Close all writers, and yield the finished files."""
        self._end()
        return self._files
