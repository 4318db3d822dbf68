"""The rules for a masked copy, read from a TOML file or from options ``FIELD=ACTION``, and the paths of their fields.

A field is a path into JSON bodies, ``body`` (the entire body), ``keys`` (each key in KEYS), ``tags`` or
``property:NAME``. An action is ``drop``, ``mask`` (which may keep some characters at the ends of a text), ``hash`` or
``encrypt`` with the key of a subject.

Paths look like ``$.user.phone``, ``$.items[*].email``, ``$["odd name"]``, ``$.first[0]``. A path matches values that
can be replaced. To match inside an array, the path needs ``[*]`` or an index; to match inside an object, it needs a
name.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from cometmq.message.properties import KEYS, TAGS
from cometmq.options import nearest
from cometmq.paths import local_path
from cometmq.spark.errors import OptionError

ANY: Final = None
"""The step ``[*]``: every element of an array."""
_STEP: Final = re.compile(
    r"""\.(?P<name>[^.\[\]"'\s]+) | \[(?P<any>\*)\] | \[(?P<index>[0-9]{1,9})\] | \[(?P<quoted>"(?:[^"\\]|\\.)*")\]""",
    re.VERBOSE,
)

Step = str | int | None


class Place(NamedTuple):
    """One matched value: ``container[key]``."""

    container: Any
    key: Any
    indices: tuple[int, ...]
    """The index that each ``[*]`` in the path matched."""

    @property
    def value(self) -> Any:
        """Return the value."""
        return self.container[self.key]


@dataclass(frozen=True, slots=True)
class JsonPath:
    """A path to values in a JSON document, which begins with ``$``."""

    text: str
    steps: tuple[Step, ...]

    def places(self, document: Any) -> Iterator[Place]:
        """Yield every value in a document that the path matches."""
        yield from _follow([document], 0, (0, *self.steps), ())

    def at(self, document: Any, indices: Sequence[int]) -> Any:
        """Return the value at the path, with ``indices`` in place of each ``[*]``, or ``None`` if there is no value."""
        left = iter(indices)
        value = document
        for step in self.steps:
            key = next(left) if step is ANY else step
            if isinstance(value, dict) if isinstance(key, str) else isinstance(value, list) and key < len(value):
                try:
                    value = value[key]
                except KeyError:
                    return None
            else:
                return None
        return value

    @property
    def wildcards(self) -> tuple[tuple[Step, ...], ...]:
        """Return the prefixes of the path that end with ``[*]``."""
        return tuple(self.steps[:at] for at, step in enumerate(self.steps) if step is ANY)


def _follow(container: Any, at: int, steps: Sequence[Step], indices: tuple[int, ...]) -> Iterator[Place]:
    step = steps[at]
    if step is ANY:
        if isinstance(container, list):
            for index in range(len(container)):
                yield from _arrive(container, index, at, steps, (*indices, index))
    elif isinstance(step, str):
        if isinstance(container, dict) and step in container:
            yield from _arrive(container, step, at, steps, indices)
    elif isinstance(container, list) and step < len(container):
        yield from _arrive(container, step, at, steps, indices)


def _arrive(container: Any, key: Any, at: int, steps: Sequence[Step], indices: tuple[int, ...]) -> Iterator[Place]:
    if at + 1 == len(steps):
        yield Place(container, key, indices)
    else:
        yield from _follow(container[key], at + 1, steps, indices)


def parse_path(text: str) -> JsonPath:
    """Parse a path.

    :raises OptionError: the text is malformed.
    """
    steps: list[Step] = []
    at = 1
    while text.startswith("$") and at < len(text):
        match = _STEP.match(text, at)
        if match is None:
            break
        if match["name"] is not None:
            steps.append(match["name"])
        elif match["quoted"] is not None:
            steps.append(json.loads(match["quoted"]))
        else:
            steps.append(ANY if match["any"] else int(match["index"]))
        at = match.end()
    if not steps or at != len(text):
        raise OptionError(
            f"{text!r} is not a path into JSON",
            next_step='write $.user.phone, $.items[*].email, $["odd name"] or $.a[0]',
        )
    return JsonPath(text, tuple(steps))


DROP, MASK, HASH, ENCRYPT = "drop", "mask", "hash", "encrypt"
ACTIONS: Final = (DROP, MASK, HASH, ENCRYPT)
APART, FAIL = "apart", "fail"
NOT_JSON: Final = (APART, DROP, FAIL)
"""Ways to handle messages whose bodies are not JSON, if a rule has a path."""
PROPERTY: Final = "property:"
_MOST_CHARS: Final = 64


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The action for one field."""

    field: str
    action: str
    keep_first: int = 0
    """Number of characters that ``mask`` keeps at the beginning …"""
    keep_last: int = 0
    """… and at the end, if the text is longer than both numbers together."""
    subject: str | None = None
    """Path to the subject whose key ``encrypt`` uses; by default, the path that is set for all rules."""


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rule: list[Rule] = []
    subject: str | None = None
    not_json: str = APART


@dataclass(frozen=True, slots=True)
class MaskRules:
    """All validated rules for a copy."""

    rules: tuple[Rule, ...]
    not_json: str = APART

    def to_dict(self) -> dict[str, Any]:
        """Return the rules as plain values, which can be stored as JSON."""
        return {"rules": [msgspec.to_builtins(rule) for rule in self.rules], "not_json": self.not_json}

    @property
    def in_json(self) -> tuple[tuple[Rule, JsonPath], ...]:
        """Return the rules for fields in JSON bodies, with their paths."""
        return tuple((rule, parse_path(rule.field)) for rule in self.rules if rule.field.startswith("$"))

    @property
    def of_properties(self) -> dict[str, Rule]:
        """Return the rules for properties, keys and tags, by property name."""
        names = {"keys": KEYS, "tags": TAGS}
        return {
            names.get(rule.field) or rule.field.removeprefix(PROPERTY): rule
            for rule in self.rules
            if rule.field in names or rule.field.startswith(PROPERTY)
        }

    @property
    def of_body(self) -> Rule | None:
        """Return the rule for the entire body, if there is one."""
        return next((rule for rule in self.rules if rule.field == "body"), None)

    @property
    def actions(self) -> frozenset[str]:
        """Return the actions that the rules use."""
        return frozenset(rule.action for rule in self.rules)

    @property
    def needs_json(self) -> bool:
        """Return True if at least one rule reads bodies, even if only to find a subject."""
        return any(rule.field.startswith("$") or rule.subject is not None for rule in self.rules)


def rules_from_toml(path: str | Path) -> MaskRules:
    """Read rules from a TOML file.

    :raises OptionError: the file cannot be read, or a rule is invalid.
    """
    path = local_path(path)
    try:
        document = msgspec.convert(tomllib.loads(path.read_text("utf-8")), _Document)
    except OSError as error:
        raise OptionError(f"cannot read the rules {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise OptionError(
            f"cannot read the rules {path}: {error}", next_step="see docs/mask.md for examples"
        ) from error
    return checked(document.rule, subject=document.subject, not_json=document.not_json)


def rules_from_options(texts: Iterable[str], *, subject: str | None = None, not_json: str = APART) -> MaskRules:
    """Parse rules of the form ``FIELD=ACTION``, ``FIELD=mask:FIRST:LAST`` or ``FIELD=encrypt:SUBJECT``.

    :raises OptionError: a rule is malformed.
    """
    rules = []
    for text in texts:
        field, equals, action = text.rpartition("=")
        action, _, rest = action.partition(":")
        given: dict[str, Any] = {}
        if equals and action == MASK and rest:
            first, _, last = rest.partition(":")
            if not (first.isdecimal() and (not last or last.isdecimal())):
                raise OptionError(f"rule {text!r}: FIRST and LAST in mask:FIRST:LAST must be whole numbers")
            given = {"keep_first": int(first), "keep_last": int(last or 0)}
        elif equals and action == ENCRYPT and rest:
            given = {"subject": rest}
        elif not equals or rest:
            raise OptionError(
                f"rule {text!r} does not have the form FIELD=ACTION", next_step="add one, as in '$.user.phone=mask:0:2'"
            )
        rules.append(Rule(field=field, action=action, **given))
    return checked(rules, subject=subject, not_json=not_json)


def checked(rules: Iterable[Rule], *, subject: str | None = None, not_json: str = APART) -> MaskRules:
    """Check the rules, and set the subject of each rule that encrypts.

    :raises OptionError: a rule is invalid.
    """
    if not_json not in NOT_JSON:
        raise OptionError(f"invalid not_json {not_json!r}: use {', '.join(NOT_JSON)}")
    found: list[Rule] = []
    for rule in rules:
        if rule.action not in ACTIONS:
            near = nearest(rule.action, ACTIONS)
            hint = f"did you mean {near}?" if near else f"use {', '.join(ACTIONS)}"
            raise OptionError(f"{rule.field}: unknown action {rule.action!r}", next_step=hint)
        _check_field(rule.field)
        if rule.field in {other.field for other in found}:
            raise OptionError(f"{rule.field} has two rules")
        if (rule.keep_first or rule.keep_last) and rule.action != MASK:
            raise OptionError(f"{rule.field}: characters to keep are only allowed for the action mask")
        if not (0 <= rule.keep_first <= _MOST_CHARS and 0 <= rule.keep_last <= _MOST_CHARS):
            raise OptionError(f"{rule.field}: mask can keep 0 to {_MOST_CHARS} characters at each end")
        if rule.subject is not None and rule.action != ENCRYPT:
            raise OptionError(f"{rule.field}: a subject is only allowed for the action encrypt")
        if rule.action == ENCRYPT:
            rule = msgspec.structs.replace(rule, subject=rule.subject or subject)
            _check_subject(rule)
        found.append(rule)
    if not found:
        raise OptionError(
            "no rules are given, so nothing would be masked", next_step="add one, as in '$.user.phone=mask:0:2'"
        )
    if any(rule.field == "body" for rule in found) and any(rule.field.startswith("$") for rule in found):
        raise OptionError("a rule for the whole body cannot be combined with rules for its fields")
    return MaskRules(tuple(found), not_json)


def _check_field(field: str) -> None:
    if field.startswith("$"):
        parse_path(field)
    elif field in (f"{PROPERTY}{KEYS}", f"{PROPERTY}{TAGS}"):
        raise OptionError(f"write {field.removeprefix(PROPERTY).lower()} instead of {field}")
    elif field not in ("body", "keys", "tags") and not field.removeprefix(PROPERTY).strip(":") * field.startswith(
        PROPERTY
    ):
        raise OptionError(
            f"{field!r} is not a field", next_step="use a path such as $.user.phone, body, keys, tags or property:NAME"
        )


def _check_subject(rule: Rule) -> None:
    if rule.subject is None:
        raise OptionError(
            f"{rule.field}: encrypt needs a subject whose key to use", next_step="add a subject, as in $.userId"
        )
    path = parse_path(rule.subject)
    own = parse_path(rule.field).wildcards if rule.field.startswith("$") else ()
    if path.wildcards != own[: len(path.wildcards)]:
        raise OptionError(
            f"{rule.field}: the subject {rule.subject} is in other arrays than the field",
            next_step="use one subject for each value of the field, as $.users[*].id for $.users[*].phone",
        )
