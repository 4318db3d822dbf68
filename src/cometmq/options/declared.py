"""Options: fields of frozen dataclasses that users set in configuration files, in Spark or on a command line."""

from __future__ import annotations

import dataclasses
import difflib
import types
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final, Literal

from cometmq.options.forms import FLAG, INT_MAX, TEXT, Form, number, whole

Outside = Literal["replaced", "kept", "refused"]
"""A value in a file that Apache's servers take and the option does not allow is replaced by the nearest number or the
default, kept with the effect that it has there, or refused, since those servers do not start with it either."""
_METADATA: Final = "option"
_NEAR_ENOUGH: Final = 0.6
_LONGEST_COMPARED: Final = 127
"""Longer keys are not compared with known ones, which takes time for each character."""


@dataclasses.dataclass(frozen=True, slots=True)
class ApacheRules:
    """The rules for a key of Apache's configuration files."""

    also: str = ""
    """Another accepted spelling; if both are given, the key wins."""
    outside: Outside = "replaced"
    empty: str = ""
    """The value that an empty text stands for."""
    stripped: bool = False
    """Blanks around the text are no part of it; Apache's server takes them, and does not work with them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """One option."""

    form: Form[Any]
    doc: str = ""
    key: str = ""
    """Its name in files, in Spark and in admin answers; by default the attribute's in camel case."""
    name: str = ""
    """Attribute of the dataclass."""
    default: Any = None
    """The default of the attribute, ``MISSING`` where it has none."""
    runtime: bool = False
    """The value may change while the process runs."""
    secret: bool = False
    """The value never appears in an answer or a log."""
    apache: ApacheRules = ApacheRules()
    flags: tuple[str, ...] = ()
    """Its names on a command line."""
    many: bool = False
    """It may be repeated there; the value is a tuple."""
    required: bool = False
    """A command demands it."""


def option(
    default: Any,
    doc: str = "",
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    form: Form[Any] | None = None,
    key: str = "",
    runtime: bool = False,
    secret: bool = False,
    apache: ApacheRules = ApacheRules(),
) -> Any:
    """Declare a field as an option.

    :param form: by default that of the default value; whole numbers are from ``minimum``, or 0, to Java's largest int.
    """
    if form is None:
        if isinstance(default, bool):
            form = FLAG
        elif isinstance(default, int):
            form = whole(int(minimum or 0), INT_MAX if maximum is None else int(maximum))
        else:
            form = number(minimum, maximum) if isinstance(default, float) else TEXT
    return declare(Option(form, doc, key, runtime=runtime, secret=secret, apache=apache), default, secret=secret)


def declare(meaning: Any, default: Any = dataclasses.MISSING, *, secret: bool = False) -> Any:
    """Declare a field by its option, or by anything else that :func:`declared` returns again."""
    values: dict[str, Any] = {"metadata": {_METADATA: meaning}, "repr": not secret, "hash": False if secret else None}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=default.copy, **values)
    return dataclasses.field(default=default, **values)


def declared(of: type) -> Mapping[str, Any]:
    """Return what the fields of a dataclass were declared by, by attribute; options have their names and defaults."""
    return _declared(of)


@cache
def _declared(of: type) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for field in dataclasses.fields(of):
        meaning = field.metadata.get(_METADATA)
        if isinstance(meaning, Option):
            key = meaning.key or camel(field.name)
            meaning = dataclasses.replace(meaning, name=field.name, key=key, default=field.default)
        if meaning is not None:
            found[field.name] = meaning
    return types.MappingProxyType(found)


def options_of(of: type) -> Mapping[str, Option]:
    """Return the options of a dataclass by their keys, in the order declared, TLS last."""
    found = [meaning for meaning in declared(of).values() if isinstance(meaning, Option)]
    return types.MappingProxyType({of.key: of for of in sorted(found, key=lambda of: of.name.startswith("tls_"))})


def spellings_of(of: type) -> dict[str, Option]:
    """Return the options of a dataclass by every accepted spelling."""
    known = options_of(of)
    return {**known, **{found.apache.also: found for found in known.values() if found.apache.also}}


def camel(name: str) -> str:
    """``flush_disk_type`` → ``flushDiskType``."""
    head, *rest = name.split("_")
    return head + "".join(part[:1].upper() + part[1:] for part in rest)


def nearest(key: str, known: Iterable[str]) -> str | None:
    """Return the known key most similar to ``key``, or None."""
    if len(key) > _LONGEST_COMPARED:
        return None
    folded = {name.lower(): name for name in known}
    close = difflib.get_close_matches(key.lower(), folded, n=1, cutoff=_NEAR_ENOUGH)
    return folded[close[0]] if close else None
