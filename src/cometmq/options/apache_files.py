"""Reads configuration files in Apache's ``key=value`` format into frozen dataclasses of options.

Each process has one dataclass, which is its configuration reference: every field has a default, a range, a meaning and
says whether it may change at run time (:func:`~cometmq.options.declared.option`).
"""

from __future__ import annotations

import dataclasses
import re
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from cometmq.errors import reason_of
from cometmq.limits import MAX_CONFIG_UPDATE_BYTES
from cometmq.options.declared import Option, nearest, options_of, spellings_of
from cometmq.options.forms import FLAG, OptionError
from cometmq.paths import PathError
from cometmq.properties_file import MalformedEscapeError, format_pairs, parse_properties, read_properties

T = TypeVar("T")
_SHOWN_CHARS: Final = 1_000
_NAMED_KEYS: Final = 50
"""Maximum number of unknown keys for which a similar key is suggested; each search takes about a millisecond."""
_HARDLY_MEANT: Final = re.compile(r"""\s$|\s[#!]|^["'].*["']$""", re.DOTALL)
"""Matches a value that is probably a mistake: it ends in a blank, is quoted, or contains what looks like a comment."""
NO_OPTIONS: Final[Mapping[str, Option]] = types.MappingProxyType({})
"""The empty mapping for configurations that have no Apache keys."""


class ConfigError(OptionError):
    """A configuration is invalid. The error message contains the place, the value and the allowed range."""


def parse_value(found: Option, text: str) -> Any:
    """Parse an option's text from an admin request, the command line, or a file (for keys that Apache does not have).

    :raises ConfigError: the value is not allowed.
    """
    text = text.strip()
    try:
        value = _read(found, text)
        if found.form.allows(value):
            return value
    except ValueError:
        pass
    raise ConfigError(f"allowed is {found.form.words}", option=found.key, message=_refusal(found, text))


def read_as_apache(found: Option, text: str, java: Option) -> tuple[Any, str]:
    """Return a value as Apache's server would read it from its file (``MixAll.properties2Object``), and a warning.

    A boolean is false unless the text is ``true``; a number or name that Java cannot read is ignored. The warning is
    empty if the value is the one that the text states.

    :param java: the name of the key in Apache's server.
    :raises ConfigError: the value is one with which Apache's server does not start either.
    """
    form, default = found.form, found.default
    if form is FLAG:
        value: Any = text.lower() == "true"
        return value, "" if value or text.lower() == "false" else _warning(found, text, value)
    try:
        value = _read(found, text.strip() if form.choices or found.apache.stripped else text)
    except ValueError:
        return default, _warning(found, text, default)
    if form.allows(value):
        return value, _oddity(found, text, value)
    if found.apache.outside == "refused":
        return parse_value(found, text), ""
    if found.apache.outside == "replaced":
        value = form.nearest(value) if form.has_range and java.form.allows(value) else default
    return value, _warning(found, text, value)


def _read(found: Option, text: str) -> Any:
    try:
        value = found.form.read(text)
    except (PathError, OptionError) as error:
        message = f"{found.key}={error.message}"
        raise ConfigError(error.message, option=found.key, message=message, next_step=error.next_step) from None
    return found.apache.empty if value == "" else value


def _refusal(found: Option, text: str) -> str:
    shown = "…" if found.secret else text[:_SHOWN_CHARS]
    return f"{found.key}={shown}: allowed is {found.form.words}"


def _warning(found: Option, text: str, value: Any) -> str:
    used = format_value(value)
    if found.secret or not used:
        return f"{_refusal(found, text)}; the value is ignored"
    return f"{_refusal(found, text)}; " + ("the value is used anyway" if used == text else f"{used} is used")


def _oddity(found: Option, text: str, value: Any) -> str:
    """Return a warning about a text that is accepted but probably a mistake, or an empty text."""
    if not isinstance(value, str) or found.form.choices or found.secret:
        return ""
    if not text and found.default:
        return f"{found.key} is empty" + (f"; {value} is used" if value else "")
    if _HARDLY_MEANT.search(value):
        return f"{found.key} has the value {value[:_SHOWN_CHARS]!r}, including any blanks, comments and quotes"
    return ""


def load_file(
    config_type: type[T],
    path: str | Path | None,
    *,
    overrides: Mapping[str, Any],
    apache: Mapping[str, Option],
    defaults: Mapping[str, Any] = types.MappingProxyType({}),
) -> tuple[T, list[str]]:
    """Read a process's configuration file (see :func:`load_options`); without a file, use the defaults and overrides.

    Changes at run time are written to the same file; its path becomes ``config_store_path``. The file and ``overrides``
    take precedence over ``defaults``, which are attribute values.

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


def _read_value(option: Option, value: str, java: Option | None, place: str) -> tuple[Any, str]:
    """Return an option's value, and a warning if the value is not used as written."""
    try:
        return (parse_value(option, value), "") if java is None else read_as_apache(option, value, java)
    except ConfigError as error:
        message = f"{place}: {error.message}"
        raise ConfigError(error.reason, option=error.option, message=message, next_step=error.next_step) from None


def load_options(
    config_type: type[T],
    text: str,
    *,
    source: str,
    overrides: Mapping[str, Any] | None = None,
    apache: Mapping[str, Option] = NO_OPTIONS,
    defaults: Mapping[str, Any] = types.MappingProxyType({}),
) -> tuple[T, list[str]]:
    """Read a configuration file into ``config_type``; values in the file take precedence over ``defaults``.

    ``apache`` contains the keys of Apache's server, whose values are read in the same way as by Apache; keys that are
    not options are stored in ``config_type.unused`` and have no effect. ``overrides`` are attribute values from the
    command line, which take precedence over the file. Returns the configuration, a warning for each unknown key and for
    each value that is not used as written, and one warning that names all keys that have no effect.

    :raises ConfigError: a value is not allowed; the message contains the file, the line and the allowed range.
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
            if key == found.apache.also and found.key in entries:
                warnings.append(f"{place}: {key} ignored because {found.key} is set too")
                continue
            values[found.name], warning = _read_value(found, value, apache.get(found.key), place)
        elif (foreign := apache.get(key)) is not None:
            try:
                unused[key] = format_value(parse_value(foreign, value))
            except ConfigError as error:
                warning = f"{error.message}; ignored, because it has no effect here"
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
    """Return a warning about Apache's keys that have no effect in CometMQ."""
    return f"Apache keys that have no effect here: {', '.join(keys)}"


def format_properties(config: Any, apache: Mapping[str, Option] = NO_OPTIONS) -> str:
    """Format a configuration as properties text, leaving out secrets (``MixAll.properties2String``).

    Apache's keys that have no effect are included if they are set, or if Apache 4.9.7 shows them even when they are not
    set.
    """
    return format_pairs(_shown(config, apache))


def _shown(config: Any, apache: Mapping[str, Option]) -> dict[str, str]:
    options = options_of(type(config))
    texts = {key: format_value(getattr(config, found.name)) for key, found in options.items() if not found.secret}
    unused: Mapping[str, str] = config.unused
    for key, found in apache.items():
        text = unused.get(key, found.default)
        if key not in options and text is not None and not found.secret:
            texts[key] = text
    return texts


def format_value(value: Any) -> str:
    """Format one value as Java does."""
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def default_texts(config_type: type) -> dict[str, str]:
    """Return the default of each key as text."""
    return {found.key: format_value(found.default) for found in options_of(config_type).values()}


@dataclasses.dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """A configuration changed by an admin request."""

    config: T
    texts: Mapping[str, str]
    """The changed keys with their new values as text, for the file."""
    without_effect: tuple[str, ...]
    """The changed keys that have no effect in CometMQ."""


def changed(config: T, updates: str, *, apache: Mapping[str, Option] = NO_OPTIONS) -> Change[T]:
    """Apply the properties in an admin request to a configuration.

    Only options marked ``runtime`` may change. A key with an unchanged value is accepted, since tools send back all
    keys that they have read. Apache's keys that have no effect are stored in ``config.unused``.

    :raises ConfigError: a key is unknown or cannot change at run time, a value is not allowed, or the text is too
        long; nothing is applied.
    """
    if len(updates) > MAX_CONFIG_UPDATE_BYTES:
        raise ConfigError(f"the properties have {len(updates)} characters; the maximum is {MAX_CONFIG_UPDATE_BYTES}")
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
        if (key == found.apache.also and found.key in given) or text == shown.get(found.key):
            continue
        value = parse_value(found, text)
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
