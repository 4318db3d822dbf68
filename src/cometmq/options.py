"""Configuration in Apache's ``key=value`` form, read into frozen dataclasses with typed, ranged fields.

One dataclass per process is its configuration reference: every field carries its default, range,
meaning and whether it may change at run time (:func:`option`).
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Generic, Literal, TypeVar

from cometmq.errors import CometMQError, reason_of
from cometmq.java_values import parse_float, parse_int
from cometmq.limits import MAX_CONFIG_UPDATE_BYTES
from cometmq.paths import PathError, local_text
from cometmq.properties_file import MalformedEscapeError, format_pairs, parse_properties, read_properties

T = TypeVar("T")
Outside = Literal["replaced", "kept", "refused"]
"""A value in a file that Apache's servers take and :class:`Option` does not allow is replaced by the nearest number or
the default, kept with the effect that it has there, or refused, since those servers do not start with it either."""
_METADATA: Final = "option"
_NEAR_ENOUGH: Final = 0.6
_LONGEST_COMPARED: Final = 127
"""Longer keys are not compared with known ones, which takes time for each character."""
_SHOWN_CHARS: Final = 1_000
_NAMED_KEYS: Final = 50
"""So many unknown keys of a file are named: to find the nearest known one takes a millisecond for each."""
_HARDLY_MEANT: Final = re.compile(r"""\s$|\s[#!]|^["'].*["']$""", re.DOTALL)
"""A text with a blank at its end, what looks like a comment, or quotes around it."""
_INT_MAX: Final = 2**31 - 1


class ConfigError(CometMQError):
    """A configuration is not valid; the message names place, value and range."""


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """One configuration key."""

    name: str
    """Attribute of the dataclass."""
    key: str
    """Apache's name in files and in admin answers."""
    type: type
    """``bool``, ``int``, ``float`` or ``str``."""
    default: Any
    minimum: float | None
    maximum: float | None
    choices: tuple[str, ...]
    pattern: str
    """Regular expression that the whole text matches; empty for any …"""
    form: str
    """… and its meaning in words."""
    runtime: bool
    """The value may change while the process runs."""
    secret: bool
    """The value never appears in an answer or a log."""
    doc: str
    also: str = ""
    """Another accepted spelling; if both are given, ``key`` wins."""
    outside: Outside = "replaced"
    empty: str = ""
    """The value that an empty text stands for."""
    path: bool = False
    """It is a path of the local file system, or a ``file:`` URL of one."""
    stripped: bool = False
    """Blanks around the text are no part of it; Apache's server takes them, and does not work with them."""

    @property
    def range_text(self) -> str:
        """The allowed values in words."""
        if self.choices:
            return " or ".join(self.choices)
        if self.type is bool:
            return "true or false"
        if self.type is str:
            return self.form or "text"
        number = "a whole number" if self.type is int else "a number"
        if self.minimum is not None and self.maximum is not None:
            return (
                f"{number} from {self.minimum:g} to {self.maximum:g}"
                if self.type is float
                else (f"{number} from {int(self.minimum)} to {int(self.maximum)}")
            )
        if self.minimum is not None:
            return f"{number} of at least {int(self.minimum)}"
        return number

    def parse(self, text: str) -> Any:
        """Parse the text of an admin request, of the command line, or of a key in a file that Apache does not have.

        :raises ConfigError: the value is not allowed.
        """
        text = text.strip()
        try:
            value: Any
            if self.type is bool:
                value = {"true": True, "false": False}[text.lower()]
            else:
                value = self._read(text)
            if not self.allows(value):
                raise ValueError
        except (KeyError, ValueError):
            raise ConfigError(self._refusal(text)) from None
        return value

    def take(self, text: str, java: Option) -> tuple[Any, str]:
        """Return what Apache's server makes of a text in its file (``MixAll.properties2Object``), and a warning.

        A boolean is false unless it is ``true``; a number or a name that Java cannot read is as if it were not there.
        The warning is empty when the value is what the text says.

        :param java: the key in Apache's server.
        :raises ConfigError: Apache's server does not start with the value, either.
        """
        if self.type is bool:
            value: Any = text.lower() == "true"
            return value, "" if value or text.lower() == "false" else self._warning(text, value)
        try:
            value = self._read(text.strip() if self.choices or self.stripped else text)
        except ValueError:
            return self.default, self._warning(text, self.default)
        if self.allows(value):
            return value, self._oddity(text, value)
        if self.outside == "refused":
            return self.parse(text), ""
        if self.outside == "replaced":
            value = self.default if self.type is str or not java.allows(value) else self._nearest(value)
        return value, self._warning(text, value)

    def allows(self, value: Any) -> bool:
        """Tell whether the value is in the range."""
        return not (
            (self.choices and value not in self.choices)
            or (self.pattern and not re.fullmatch(self.pattern, value))
            or (self.minimum is not None and not value >= self.minimum)
            or (self.maximum is not None and not value <= self.maximum)
        )

    def _read(self, text: str) -> Any:
        if self.path:
            try:
                return local_text(text) or self.empty
            except PathError as error:
                raise ConfigError(f"{self.key}={error.message}", next_step=error.next_step) from None
        if self.type is str:
            return text or self.empty
        return parse_int(text) if self.type is int else parse_float(text)

    def _nearest(self, value: Any) -> Any:
        if self.minimum is not None and not value >= self.minimum:
            return self.type(self.minimum)
        return self.type(self.maximum)

    def _refusal(self, text: str) -> str:
        shown = "…" if self.secret else text[:_SHOWN_CHARS]
        return f"{self.key}={shown}: allowed is {self.range_text}"

    def _warning(self, text: str, value: Any) -> str:
        used = format_value(value)
        if self.secret or not used:
            return f"{self._refusal(text)}; it is not used"
        return f"{self._refusal(text)}; " + ("it is used all the same" if used == text else f"{used} is used")

    def _oddity(self, text: str, value: Any) -> str:
        """A warning about a text that is taken and hardly meant so."""
        if self.type is not str or self.choices or self.secret:
            return ""
        if not text and self.default:
            return f"{self.key} is empty" + (f"; {value} is used" if value else "")
        if _HARDLY_MEANT.search(value):
            return f"the value of {self.key} is {value[:_SHOWN_CHARS]!r}: blanks, comments and quotes are part of it"
        return ""


NO_OPTIONS: Final[Mapping[str, Option]] = types.MappingProxyType({})
"""The spellings of configurations without keys of Apache's."""


def option(
    default: Any,
    doc: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    pattern: str = "",
    form: str = "",
    key: str = "",
    also: str = "",
    runtime: bool = False,
    secret: bool = False,
    outside: Outside = "replaced",
    empty: str = "",
    path: bool = False,
    stripped: bool = False,
) -> Any:
    """Declare a field of a configuration dataclass; integers have Java's int as default range."""
    if isinstance(default, int) and not isinstance(default, bool) and maximum is None:
        maximum = _INT_MAX
    if isinstance(default, int) and not isinstance(default, bool) and minimum is None:
        minimum = 0
    metadata = {
        "minimum": minimum,
        "maximum": maximum,
        "choices": choices,
        "pattern": pattern,
        "form": form,
        "key": key,
        "also": also,
        "runtime": runtime,
        "secret": secret,
        "doc": doc,
        "outside": outside,
        "empty": empty,
        "path": path,
        "stripped": stripped,
    }
    return dataclasses.field(default=default, metadata={_METADATA: metadata}, repr=not secret)


def camel(name: str) -> str:
    """``flush_disk_type`` → ``flushDiskType``."""
    head, *rest = name.split("_")
    return head + "".join(part[:1].upper() + part[1:] for part in rest)


def options_of(config_type: type) -> Mapping[str, Option]:
    """Return the options of a configuration dataclass by their Apache names, in the order declared, TLS last."""
    return _options_of(config_type)


@cache
def _options_of(config_type: type) -> Mapping[str, Option]:
    hints = typing.get_type_hints(config_type)
    found: dict[str, Option] = {}
    for field in sorted(dataclasses.fields(config_type), key=lambda field: field.name.startswith("tls_")):
        metadata = field.metadata.get(_METADATA)
        if metadata is None:
            continue
        kind = hints[field.name]
        if isinstance(kind, types.UnionType) or typing.get_origin(kind) is not None:
            raise TypeError(f"{config_type.__name__}.{field.name}: an option has a plain type")
        details = dict(metadata)
        key = details.pop("key") or camel(field.name)
        found[key] = Option(name=field.name, key=key, type=kind, default=field.default, **details)
    return types.MappingProxyType(found)


def spellings_of(config_type: type) -> dict[str, Option]:
    """Return the options of a configuration dataclass by every accepted spelling."""
    known = options_of(config_type)
    return {**known, **{found.also: found for found in known.values() if found.also}}


def nearest(key: str, known: Iterable[str]) -> str | None:
    """Return the known key most similar to ``key``, or None."""
    if len(key) > _LONGEST_COMPARED:
        return None
    folded = {name.lower(): name for name in known}
    close = difflib.get_close_matches(key.lower(), folded, n=1, cutoff=_NEAR_ENOUGH)
    return folded[close[0]] if close else None


def load_file(
    config_type: type[T],
    path: str | Path | None,
    *,
    overrides: Mapping[str, Any],
    apache: Mapping[str, Option],
    defaults: Mapping[str, Any] = types.MappingProxyType({}),
) -> tuple[T, list[str]]:
    """Read the configuration file of a process, see :func:`load_options`; without a file take defaults and overrides.

    Changes at run time are written to that file: its path becomes ``config_store_path``. ``defaults`` are attribute
    values that the file and ``overrides`` win over.

    :raises ConfigError: the file cannot be read, or a value is not allowed.
    """
    if path is None:
        return config_type(**{**defaults, **overrides}), []
    try:
        text = read_properties(Path(path))
    except OSError as error:
        raise ConfigError(
            f"cannot read the configuration {path}: {reason_of(error)}", next_step="check the -c argument"
        ) from None
    values = {"config_store_path": str(path)} | dict(overrides)
    return load_options(config_type, text, source=str(path), overrides=values, apache=apache, defaults=defaults)


def load_options(
    config_type: type[T],
    text: str,
    *,
    source: str,
    overrides: Mapping[str, Any] | None = None,
    apache: Mapping[str, Option] = NO_OPTIONS,
    defaults: Mapping[str, Any] = types.MappingProxyType({}),
) -> tuple[T, list[str]]:
    """Read a configuration file into ``config_type``; ``defaults`` are values of attributes that it wins over.

    ``apache`` are the keys of Apache's server, whose values are read as it reads them; those that are no options are
    stored in ``config_type.unused`` and change nothing. ``overrides`` are attribute values from the command line,
    which win over the file. Returns the configuration, a warning for each unknown key and for each value that is not
    used as it is written, and one that names all keys without effect.

    :raises ConfigError: a value is not allowed; the message has file, line and range.
    """
    known = spellings_of(config_type)
    values: dict[str, Any] = dict(defaults)
    unused: dict[str, str] = {}
    warnings: list[str] = []
    unknown = 0
    try:
        entries = {key: (line, value) for line, key, value in parse_properties(text, strict=True)}
    except MalformedEscapeError as error:
        raise ConfigError(f"{source}: {error}") from None
    for key, (line, value) in entries.items():
        place = f"{source}:{line}"
        warning = ""
        if (found := known.get(key)) is not None:
            if key == found.also and found.key in entries:
                warnings.append(f"{place}: {key} ignored, since {found.key} is given too")
                continue
            java = apache.get(found.key)
            try:
                values[found.name], warning = (found.parse(value), "") if java is None else found.take(value, java)
            except ConfigError as error:
                raise ConfigError(f"{place}: {error.message}", next_step=error.next_step) from None
        elif (foreign := apache.get(key)) is not None:
            try:
                unused[key] = format_value(foreign.parse(value))
            except ConfigError as error:
                warning = f"{error.message}; ignored, since it has no effect here"
        elif (unknown := unknown + 1) <= _NAMED_KEYS:
            near = nearest(key, known.keys() | apache.keys())
            hint = f"; did you mean {near}?" if near else ""
            warning = f"unknown key {key[:_SHOWN_CHARS]} ignored{hint}"
        if warning:
            warnings.append(f"{place}: {warning}")
    if unknown > _NAMED_KEYS:
        warnings.append(f"{source}: {unknown - _NAMED_KEYS} more unknown keys ignored")
    if unused:
        warnings.append(f"{source}: {no_effect(unused)}")
        values["unused"] = unused
    values.update(overrides or {})
    return config_type(**values), warnings


def no_effect(keys: Iterable[str]) -> str:
    """Return a warning about keys of Apache's without effect."""
    return f"keys of Apache's without effect here: {', '.join(keys)}"


def format_properties(config: Any, apache: Mapping[str, Option] = NO_OPTIONS) -> str:
    """Return a configuration as properties text (``MixAll.properties2String``) without secrets.

    Keys of Apache's without effect are in it if they are set, or if Apache 4.9.7 shows them unset.
    """
    return format_pairs(_shown(config, apache))


def _shown(config: Any, apache: Mapping[str, Option]) -> dict[str, str]:
    """The keys and their values as texts."""
    options = options_of(type(config))
    texts = {key: format_value(getattr(config, found.name)) for key, found in options.items() if not found.secret}
    unused: Mapping[str, str] = config.unused
    for key, found in apache.items():
        text = unused.get(key, found.default)
        if key not in options and text is not None and not found.secret:
            texts[key] = text
    return texts


def format_value(value: Any) -> str:
    """Return one value in Java's form."""
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def default_texts(config_type: type) -> dict[str, str]:
    """Return the default of each key as text."""
    return {found.key: format_value(found.default) for found in options_of(config_type).values()}


@dataclasses.dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """A configuration after an admin request."""

    config: T
    texts: Mapping[str, str]
    """The changed keys with their new values as text, for the file."""
    without_effect: tuple[str, ...]
    """Those of them that change nothing."""


def changed(config: T, updates: str, *, apache: Mapping[str, Option] = NO_OPTIONS) -> Change[T]:
    """Apply the properties text of an admin request.

    Only options marked ``runtime`` may change. A key with an unchanged value is accepted, since tools send back what
    they read. Keys of Apache's without effect are stored in ``config.unused``.

    :raises ConfigError: a key is unknown or cannot change at run time, a value is not allowed, or the text is too
        long; nothing is applied.
    """
    if len(updates) > MAX_CONFIG_UPDATE_BYTES:
        raise ConfigError(f"{len(updates)} characters of properties; at most {MAX_CONFIG_UPDATE_BYTES} are taken")
    known = spellings_of(type(config))
    unused: dict[str, str] = dict(config.unused)  # type: ignore[attr-defined]
    values: dict[str, Any] = {}
    texts: dict[str, str] = {}
    shown = _shown(config, apache)
    try:
        given = {key: text for _, key, text in parse_properties(updates, strict=True)}
    except MalformedEscapeError as error:
        raise ConfigError(str(error)) from None
    for key, text in given.items():
        found = known.get(key) or apache.get(key)
        if found is None:
            near = nearest(key, known.keys() | apache.keys())
            raise ConfigError(f"unknown key {key[:_SHOWN_CHARS]}" + (f"; did you mean {near}?" if near else ""))
        if (key == found.also and found.key in given) or text == shown.get(found.key):
            continue
        value = found.parse(text)
        ours = key in known
        before = format_value(getattr(config, found.name)) if ours else unused.get(key, found.default)
        if format_value(value) == before:
            continue
        if not found.runtime:
            raise ConfigError(f"{key} cannot be changed while running; change it in the file and restart")
        texts[found.key] = format_value(value)
        if ours:
            values[found.name] = value
        else:
            unused[key] = texts[key]
    without = tuple(key for key in texts if key not in known)
    if without:
        values["unused"] = unused
    return Change(dataclasses.replace(config, **values), texts, without)  # type: ignore[type-var]
