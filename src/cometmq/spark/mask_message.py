"""Masks one message: its body and its properties, so that nothing of what the rules name is left.

A message that cannot be masked for certain is never passed on as it is: it is refused with a reason. A body that is
JSON is always written anew, since of two members of one name the rules see only the last, and only the last is kept.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, Final, NamedTuple

from cometmq.message.properties import KEY_SEPARATOR, KEYS, decode_properties, join_properties
from cometmq.spark.mask_cipher import sealed
from cometmq.spark.mask_keys import DataKey, digest, subject_text
from cometmq.spark.mask_paths import JsonPath, Place, parse_path
from cometmq.spark.mask_rules import DROP, ENCRYPT, HASH, MASK, MaskRules, Rule

STAR: Final = "*"
NOTHING: Final = b"null"
"""The body that is left where it is dropped: JSON, and not empty, which RocketMQ does not take."""

KeysFor = Callable[[Iterable[str]], Mapping[str, DataKey | None]]


class Plain(NamedTuple):
    """What of a message may have to be masked."""

    body: bytes
    properties_text: str


class RefusedError(Exception):
    """A message that cannot be masked; the text is the reason and tells nothing of its content."""


class _Wanted(NamedTuple):
    depth: int
    """Steps to the place."""
    place: Place
    rule: Rule
    subject: str | None


class Masker:
    """Applies rules to messages, some at a time, so that their keys are fetched together.

    :param keys_for: keys of subjects, for ``encrypt``.
    :param hash_secret: needed for ``hash`` only.
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
        """Values masked, by the field of the rule."""

    def masked(self, messages: Iterable[Plain]) -> list[Plain | RefusedError]:
        """Mask messages; each is the masked one, or why it cannot be."""
        begun = [self._begin(message) for message in messages]
        subjects = {
            subject for one in begun if isinstance(one, _Begun) for subject in one.subjects() if subject is not None
        }
        keys = self._keys_for(subjects) if subjects else {}
        return [one if isinstance(one, RefusedError) else self._finish(one, keys) for one in begun]

    # First look: nothing is changed ------------------------------------------------------------------

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
            raise RefusedError(f"no subject {rule.subject}")
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
        # Inner fields first: what a rule takes out of a field must not be in what another makes of the whole field.
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
        """What stands in a value's place; ``_GONE`` for nothing."""
        match rule.action:
            case action if action == MASK:
                return _starred(value, rule.keep_first, rule.keep_last)
            case action if action == HASH:
                assert self._hash_secret is not None, "the job reads it where a rule hashes"
                return digest(self._hash_secret, value if isinstance(value, str) else _canonical(value))
            case action if action == ENCRYPT and key is not None:
                return sealed(value, key)
        return _GONE  # also what would be encrypted for a subject that is erased


class _Begun(NamedTuple):
    """A message that was looked at."""

    message: Plain
    properties: dict[str, str]
    document: Any
    is_json: bool
    wanted: list[_Wanted]
    of_properties: dict[str, str | None]
    """Subjects of the properties to be masked, by name."""
    of_body: str | None

    def subjects(self) -> Iterator[str | None]:
        """Whose keys are needed."""
        yield self.of_body
        yield from self.of_properties.values()
        for wanted in self.wanted:
            yield wanted.subject


_GONE: Final = object()


def _remove(places: Iterable[Place]) -> None:
    """Take values away: elements of arrays from the last on, so that the others stay where they are."""
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
        raise RefusedError("its body is no JSON") from error


def _exact(text: str) -> float:
    """A number that comes out as it went in.

    :raises RefusedError: it has more digits than a double.
    """
    from decimal import Decimal, InvalidOperation

    number = float(text)
    try:
        kept = number not in (float("inf"), float("-inf")) and Decimal(repr(number)) == Decimal(text)
    except InvalidOperation:  # an exponent that no decimal has either
        kept = False
    if not kept:
        raise RefusedError("its body has a number of more digits than can be kept")
    return number


def _refused(_: str) -> float:
    raise RefusedError("its body is no JSON")


def _written(document: Any) -> bytes:
    try:
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can only say with an escape
        return json.dumps(document, separators=(",", ":")).encode()


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _starred(value: Any, first: int, last: int) -> Any:
    """Stars for all characters but some at the ends; of arrays and objects for each value in them."""
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
