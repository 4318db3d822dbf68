"""Options: fields of frozen dataclasses that users set in configuration files, in Spark or on the command line."""

from __future__ import annotations

import dataclasses
import difflib
import types
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final, Literal

from cometmq.options.forms import FLAG, INT_MAX, TEXT, Form, number, whole

Outside = Literal["replaced", "kept", "refused"]
"""Says how a value is treated that CometMQ's option does not allow but Apache's servers can read.

The value is replaced by the nearest number or by the default, keeps its effect in Apache, or is rejected because
Apache's servers do not start with it either.
"""
_METADATA: Final = "option"
_NEAR_ENOUGH: Final = 0.6
_LONGEST_COMPARED: Final = 127
"""Maximum length of a key that is compared with the known keys; comparing longer keys would take too long."""


@dataclasses.dataclass(frozen=True, slots=True)
class ApacheRules:
    """The rules for a key in Apache's configuration files."""

    also: str = ""
    """Another spelling of the key, which is ignored if the key itself is set."""
    outside: Outside = "replaced"
    empty: str = ""
    """The value that an empty string stands for."""
    stripped: bool = False
    """If true, blanks around the value are ignored. Apache's server accepts such a value but then does not work."""


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """An option of a configuration, a Spark operation or a command."""

    form: Form[Any]
    doc: str = ""
    key: str = ""
    """The name in files, in Spark and in admin responses; by default the attribute's name in camel case."""
    name: str = ""
    """The name of the dataclass attribute."""
    default: Any = None
    """The attribute's default value, or ``MISSING`` if it has none."""
    runtime: bool = False
    """True if the value may change while the process runs."""
    secret: bool = False
    """True if the value must never appear in a response or a log."""
    apache: ApacheRules = ApacheRules()
    flags: tuple[str, ...] = ()
    """The option's names on a command line."""
    many: bool = False
    """True if the option may be repeated on a command line; its value is then a tuple."""
    required: bool = False
    """True if a command requires the option."""


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

    :param form: the form of the option's values. By default it is derived from the default value; whole numbers then
        range from ``minimum`` (or 0) to Java's maximum int.
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
    """Declare a dataclass field, and attach the object ``meaning`` to it, for example an option. :func:`declared`
    returns these objects.
    """
    values: dict[str, Any] = {"metadata": {_METADATA: meaning}, "repr": not secret, "hash": False if secret else None}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=default.copy, **values)
    return dataclasses.field(default=default, **values)


def declared(of: type) -> Mapping[str, Any]:
    """Return the objects with which a dataclass's fields were declared, by attribute."""
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
    """Return a dataclass's options by key, in declaration order, with the TLS options last."""
    found = [meaning for meaning in declared(of).values() if isinstance(meaning, Option)]
    return types.MappingProxyType({of.key: of for of in sorted(found, key=lambda of: of.name.startswith("tls_"))})


def spellings_of(of: type) -> dict[str, Option]:
    """Return a dataclass's options by every accepted spelling."""
    known = options_of(of)
    return {**known, **{found.apache.also: found for found in known.values() if found.apache.also}}


def camel(name: str) -> str:
    """Convert a name to camel case: ``flush_disk_type`` → ``flushDiskType``."""
    head, *rest = name.split("_")
    return head + "".join(part[:1].upper() + part[1:] for part in rest)


def nearest(key: str, known: Iterable[str]) -> str | None:
    """Return the known key that is most similar to ``key``, or None if none is similar."""
    if len(key) > _LONGEST_COMPARED:
        return None
    folded = {name.lower(): name for name in known}
    close = difflib.get_close_matches(key.lower(), folded, n=1, cutoff=_NEAR_ENOUGH)
    return folded[close[0]] if close else None
