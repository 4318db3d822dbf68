"""Which fields a copy masks, and how: from a TOML file or from options of the form ``FIELD=ACTION``.

A field is a path into JSON bodies (:mod:`~.mask_paths`), ``body`` (the whole of it), ``keys`` (each of KEYS),
``tags`` or ``property:NAME``. An action is ``drop``, ``mask`` (of text so many characters at its ends may stay),
``hash`` or ``encrypt`` with the key of a subject.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from cometmq.message.properties import KEYS, TAGS
from cometmq.options import nearest
from cometmq.spark.errors import OptionError
from cometmq.spark.mask_paths import JsonPath, parse_path

DROP, MASK, HASH, ENCRYPT = "drop", "mask", "hash", "encrypt"
ACTIONS: Final = (DROP, MASK, HASH, ENCRYPT)
APART, FAIL = "apart", "fail"
NOT_JSON: Final = (APART, DROP, FAIL)
"""What becomes of a message whose body is no JSON, where rules look into bodies."""
PROPERTY: Final = "property:"
_KEPT_MOST: Final = 64


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is done with one field."""

    field: str
    action: str
    keep_first: int = 0
    """Of ``mask``: characters that stay at the beginning …"""
    keep_last: int = 0
    """… and at the end, of text longer than both."""
    subject: str | None = None
    """Of ``encrypt``: path to whose key is used; that of all rules without it."""


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rule: list[Rule] = []
    subject: str | None = None
    not_json: str = APART


@dataclass(frozen=True, slots=True)
class MaskRules:
    """All rules of a copy, checked."""

    rules: tuple[Rule, ...]
    not_json: str = APART

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {"rules": [msgspec.to_builtins(rule) for rule in self.rules], "not_json": self.not_json}

    @property
    def in_json(self) -> tuple[tuple[Rule, JsonPath], ...]:
        """The rules for fields of JSON bodies, with their paths."""
        return tuple((rule, parse_path(rule.field)) for rule in self.rules if rule.field.startswith("$"))

    @property
    def of_properties(self) -> dict[str, Rule]:
        """The rules for properties, keys and tags, by the property's name."""
        names = {"keys": KEYS, "tags": TAGS}
        return {
            names.get(rule.field) or rule.field.removeprefix(PROPERTY): rule
            for rule in self.rules
            if rule.field in names or rule.field.startswith(PROPERTY)
        }

    @property
    def of_body(self) -> Rule | None:
        """The rule for whole bodies."""
        return next((rule for rule in self.rules if rule.field == "body"), None)

    @property
    def actions(self) -> frozenset[str]:
        """The actions that occur."""
        return frozenset(rule.action for rule in self.rules)

    @property
    def needs_json(self) -> bool:
        """Whether bodies are looked into, be it for a subject only."""
        return any(rule.field.startswith("$") or rule.subject is not None for rule in self.rules)


def rules_from_toml(path: Path) -> MaskRules:
    """Read rules from a TOML file.

    :raises OptionError: the file cannot be read, or a rule is none.
    """
    try:
        document = msgspec.convert(tomllib.loads(path.read_text("utf-8")), _Document)
    except OSError as error:
        raise OptionError(f"the rules {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise OptionError(
            f"the rules {path} cannot be read: {error}", next_step="docs/mask.md shows how they look"
        ) from error
    return checked(document.rule, subject=document.subject, not_json=document.not_json)


def rules_from_options(texts: Iterable[str], *, subject: str | None = None, not_json: str = APART) -> MaskRules:
    """Read rules of the form ``FIELD=ACTION``, ``FIELD=mask:FIRST:LAST`` or ``FIELD=encrypt:SUBJECT``.

    :raises OptionError: one is none.
    """
    rules = []
    for text in texts:
        field, equals, told = text.rpartition("=")
        action, _, rest = told.partition(":")
        given: dict[str, Any] = {}
        if equals and action == MASK and rest:
            first, _, last = rest.partition(":")
            if not (first.isdecimal() and (not last or last.isdecimal())):
                raise OptionError(f"rule {text!r}: mask:FIRST:LAST has two numbers of characters that stay")
            given = {"keep_first": int(first), "keep_last": int(last or 0)}
        elif equals and action == ENCRYPT and rest:
            given = {"subject": rest}
        elif not equals or rest:
            raise OptionError(
                f"rule {text!r} is not of the form FIELD=ACTION", next_step="as in '$.user.phone=mask:0:2'"
            )
        rules.append(Rule(field=field, action=action, **given))
    return checked(rules, subject=subject, not_json=not_json)


def checked(rules: Iterable[Rule], *, subject: str | None = None, not_json: str = APART) -> MaskRules:
    """Demand that rules make sense, and give those that encrypt their subject.

    :raises OptionError: one does not.
    """
    if not_json not in NOT_JSON:
        raise OptionError(f"not_json {not_json!r} is none of {', '.join(NOT_JSON)}")
    found: list[Rule] = []
    for rule in rules:
        if rule.action not in ACTIONS:
            near = nearest(rule.action, ACTIONS)
            hint = f"did you mean {near}?" if near else f"there are {', '.join(ACTIONS)}"
            raise OptionError(f"{rule.field}: there is no action {rule.action!r}", next_step=hint)
        _check_field(rule.field)
        if rule.field in {other.field for other in found}:
            raise OptionError(f"{rule.field} has two rules")
        if (rule.keep_first or rule.keep_last) and rule.action != MASK:
            raise OptionError(f"{rule.field}: only mask keeps characters")
        if not (0 <= rule.keep_first <= _KEPT_MOST and 0 <= rule.keep_last <= _KEPT_MOST):
            raise OptionError(f"{rule.field}: mask keeps from 0 to {_KEPT_MOST} characters at each end")
        if rule.subject is not None and rule.action != ENCRYPT:
            raise OptionError(f"{rule.field}: only encrypt has a subject")
        if rule.action == ENCRYPT:
            rule = msgspec.structs.replace(rule, subject=rule.subject or subject)
            _check_subject(rule)
        found.append(rule)
    if not found:
        raise OptionError("there is no rule, and nothing would be masked", next_step="as in '$.user.phone=mask:0:2'")
    if any(rule.field == "body" for rule in found) and any(rule.field.startswith("$") for rule in found):
        raise OptionError("a rule for the whole body leaves nothing to do for rules of its fields")
    return MaskRules(tuple(found), not_json)


def _check_field(field: str) -> None:
    if field.startswith("$"):
        parse_path(field)
    elif field in (f"{PROPERTY}{KEYS}", f"{PROPERTY}{TAGS}"):
        raise OptionError(f"{field} is written {field.removeprefix(PROPERTY).lower()}")
    elif field not in ("body", "keys", "tags") and not field.removeprefix(PROPERTY).strip(":") * field.startswith(
        PROPERTY
    ):
        raise OptionError(
            f"{field!r} is no field", next_step="write a path such as $.user.phone, body, keys, tags or property:NAME"
        )


def _check_subject(rule: Rule) -> None:
    if rule.subject is None:
        raise OptionError(f"{rule.field}: encrypt needs to know whose key to use", next_step="name a subject: $.userId")
    path = parse_path(rule.subject)
    own = parse_path(rule.field).wildcards if rule.field.startswith("$") else ()
    if path.wildcards != own[: len(path.wildcards)]:
        raise OptionError(
            f"{rule.field}: the subject {rule.subject} goes through other arrays than the field",
            next_step="a subject is one value for each value of the field, as $.users[*].id for $.users[*].phone",
        )
