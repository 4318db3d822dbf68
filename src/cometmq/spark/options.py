"""Parsers of options that source, sink and store reader share.

Spark folds the case of option names, so they are looked up without it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, fields
from datetime import UTC, datetime
from typing import Any, Final

from cometmq.message.hosts import parse_address, split_addresses
from cometmq.message.names import check_group, check_topic
from cometmq.options import nearest
from cometmq.paths import PathError, local_text
from cometmq.spark.errors import OptionError

DEFAULT_GROUP: Final = "cometmq_spark"
TOPIC_OPTION_NAMES: Final = ("topic", "subscribe", "subscribePattern")
SECRET_OPTION_NAMES: Final = frozenset({"secretKey", "securityToken", "tlsKeyPassword"})
"""Options whose values appear in no error."""


def option(name: str, parse: Callable[[str, str], Any], default: Any) -> Any:
    """Declare a field of a class of options.

    :param parse: makes the field's value of the option's name and text, or raises OptionError.
    """
    return field(default=default, metadata={"option": name, "parse": parse})


def option_names(kind: type[Any]) -> tuple[str, ...]:
    """List the options that a class declares."""
    return tuple(of.metadata["option"] for of in fields(kind) if of.metadata)


def parse_declared(kind: type[Any], values: Mapping[str, str]) -> dict[str, Any]:
    """Parse the options that a class declares; return the fields of those that are given.

    :raises OptionError: an option has a bad value.
    """
    return {
        of.name: of.metadata["parse"](of.metadata["option"], values[of.metadata["option"]])
        for of in fields(kind)
        if of.metadata and of.metadata["option"] in values
    }


def folded_names(names: Iterable[str], aliases: Mapping[str, str]) -> dict[str, str]:
    """Map options and aliases in lower case to the options' canonical names."""
    return {name.lower(): name for name in names} | {alias.lower(): name for alias, name in aliases.items()}


def canonical_options(owner: str, given: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    """Give options their canonical names; ``known`` maps all names and aliases, in lower case, to these.

    :raises OptionError: one is unknown (the nearest known one is named) or given twice.
    """
    values: dict[str, str] = {}
    for name, value in given.items():
        canonical = known.get(name.lower())
        if canonical is None:
            near = nearest(name, known.values())
            raise OptionError(
                f"{owner} has no option {name!r}",
                next_step=f"did you mean {near}?" if near else f"it has {', '.join(dict.fromkeys(known.values()))}",
            )
        if canonical in values and values[canonical] != value:
            both = "" if canonical in SECRET_OPTION_NAMES else f", as {values[canonical]!r} and {value!r}"
            raise OptionError(f"option {canonical} is given twice{both}")
        values[canonical] = value
    return values


def parse_addresses(values: Mapping[str, str]) -> tuple[str, ...]:
    """Parse the nameservers of option ``namesrvAddr``."""
    text = values.get("namesrvAddr", "")
    addresses = split_addresses(text)
    if not addresses:
        raise OptionError("option namesrvAddr is missing", next_step="as in .option('namesrvAddr', '127.0.0.1:9876')")
    for address in addresses:
        try:
            parse_address(address)
        except ValueError as error:
            raise OptionError(f"option namesrvAddr: {error}") from error
    return addresses


def parse_topics(values: Mapping[str, str], *, also: str | None = None) -> tuple[tuple[str, ...], str | None]:
    """Parse ``topic``, ``subscribe`` or ``subscribePattern``: names of topics, or a pattern.

    :param also: another option that may be given in place of these.
    :raises OptionError: none or several of these are given, or a name is not allowed.
    """
    given = [name for name in TOPIC_OPTION_NAMES if name in values]
    if len(given) != 1:
        names = [*TOPIC_OPTION_NAMES, *([also] if also else [])]
        raise OptionError(
            f"exactly one of {', '.join(names[:-1])} and {names[-1]} must be given"
            + (f", not {' and '.join(given)}" if given else "")
        )
    text = values[given[0]]
    if given[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise OptionError(f"subscribePattern {text!r} is not a regular expression: {error}") from error
        return (), text
    topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not topics:
        raise OptionError(f"option {given[0]} names no topic")
    for topic in topics:
        if fault := check_topic(topic):
            raise OptionError(f"option {given[0]}: {fault}")
    return topics, None


def demand_present(
    wanted: Iterable[str],
    there: Iterable[str],
    beginning: str,
    *,
    next_step: str,
    known: Callable[[], Iterable[str]] | None = None,
) -> None:
    """Demand that all topics asked for are there.

    :param beginning: of the error, which ends with the names of the missing topics.
    :param next_step: what to do where no similar name is known.
    :param known: returns all existing names, where ``there`` has only some; called for the error only.
    :raises OptionError: some are not.
    """
    present = set(there)
    absent = sorted(set(wanted) - present)
    if not absent:
        return
    names = present if known is None else set(known())
    near = dict.fromkeys(name for topic in absent if (name := nearest(topic, names)) is not None)
    raise OptionError(
        f"{beginning} {', '.join(absent)}", next_step=f"did you mean {', '.join(near)}?" if near else next_step
    )


def parse_instant(name: str, text: str) -> int:
    """Parse milliseconds since 1970 or an ISO 8601 time (UTC by default); return milliseconds."""
    if re.fullmatch(r"-?\d+", text.strip()):
        return int(text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise OptionError(f"option {name}: {text!r} is neither milliseconds since 1970 nor an ISO 8601 time") from error
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def demand_forward(begin: str, begin_ms: int | None, end: str, end_ms: int | None) -> None:
    """Demand that a time does not end before it begins; None is no limit.

    :raises OptionError: naming both.
    """
    if begin_ms is not None and end_ms is not None and begin_ms > end_ms:
        raise OptionError(f"{end} is before {begin}", next_step="are they exchanged?")


def parse_flag(name: str, text: str) -> bool:
    """Parse ``true`` or ``false``."""
    folded = text.strip().lower()
    if folded not in ("true", "false"):
        raise OptionError(f"option {name} is true or false, not {text!r}")
    return folded == "true"


def parse_count(name: str, text: str) -> int:
    """Parse a number from 1 on."""
    if not re.fullmatch(r"\d{1,18}", text.strip()) or int(text) < 1:
        raise OptionError(f"option {name} is a number from 1 on, not {text!r}")
    return int(text)


def parse_group(name: str, text: str) -> str:
    """Check the name of a group."""
    if fault := check_group(text):
        raise OptionError(f"option {name}: {fault}")
    return text


def parse_bad_bodies(name: str, text: str) -> bool:
    """Parse ``fail`` or ``null``; return whether a body that cannot be unpacked fails the query."""
    if text not in ("fail", "null"):
        raise OptionError(f"option {name} is fail or null, not {text!r}")
    return text == "fail"


def parse_path(name: str, text: str) -> str | None:
    """Parse a path; an empty one means none.

    :raises OptionError: it has a scheme that is not served.
    """
    try:
        return local_text(text) or None
    except PathError as error:
        raise OptionError(f"option {name}: {error.message}", next_step=error.next_step) from error
