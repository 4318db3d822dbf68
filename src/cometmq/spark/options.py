"""Options that the source, the sink and the store reader share.

Spark ignores the case of option names, so lookups here ignore it too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from cometmq import options
from cometmq.message.hosts import parse_address, split_addresses
from cometmq.message.names import check_group, check_topic
from cometmq.options import nearest, options_of
from cometmq.options.forms import Form, checked, moment, named
from cometmq.paths import local_text
from cometmq.spark.errors import OptionError
from cometmq.storage import Location, StorageOptions

T = TypeVar("T")
DEFAULT_GROUP: Final = "cometmq_spark"
TOPIC_OPTION_NAMES: Final = ("topic", "subscribe", "subscribePattern")
STORAGE: Final = "storage."
"""Beginning of the names of the options for object stores."""
SECRET_PLACES: Final = {
    "secretKey": "secretKeyFile=FILE or secretKeyEnv=VARIABLE",
    "securityToken": "credentialsFile=FILE, a file like tools.yml",
    "tlsKeyPassword": "tlsKeyPasswordFile=FILE",
    **{
        f"{STORAGE}{name}": "it in the environment or a profile, or as spark.hadoop.fs.s3a.secret.key and its like"
        for name, declared in options_of(StorageOptions).items()
        if declared.secret
    },
}
"""Options whose values are never shown in errors, and the options that a command accepts instead."""


GROUP: Final = checked("the name of a group", check_group)
TOPIC: Final = checked("the name of a topic", check_topic)
INSTANT: Final = moment(utc=True, before_1970=True)
BAD_BODIES: Final = named({"fail": True, "null": False})
"""True if a body that cannot be decompressed fails the query."""
PATH: Final = Form("a path", lambda text: local_text(text) or None, keeps_blanks=True)
"""A path on this machine; None if the text is empty."""
BAD_RECORDS: Final = Form("a path or URL", lambda text: str(Location.parse(text)) if text else None, keeps_blanks=True)
"""Place for bad records; None if the text is empty."""
PLACE: Final = Form("a path or URL", lambda text: str(Location.parse(text)) if text else "", keeps_blanks=True)
"""A local path, or a URL of an object store or HDFS; empty if the text is empty."""


def parse_option(name: str, form: Form[T], text: str) -> T:
    """Parse the text of an option.

    :raises OptionError: the text is not allowed.
    """
    try:
        return form.parse(text)
    except options.OptionError as error:
        raise OptionError(error.reason, option=name, next_step=error.next_step) from error


def parse_declared(kind: type[Any], values: Mapping[str, str]) -> dict[str, Any]:
    """Parse the options that a class declares. Return the class's fields for the given options.

    :raises OptionError: an option has an invalid value.
    """
    return {
        found.name: parse_option(key, found.form, values[key])
        for key, found in options_of(kind).items()
        if key in values
    }


def folded_names(names: Iterable[str], aliases: Mapping[str, str]) -> dict[str, str]:
    """Map options and aliases in lower case to the options' canonical names."""
    return {name.lower(): name for name in names} | {alias.lower(): name for alias, name in aliases.items()}


def canonical_options(owner: str, given: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    """Map options to their canonical names; ``known`` maps all names and aliases, in lower case, to canonical names.

    :raises OptionError: an option is unknown (the error suggests the nearest known option) or is given twice.
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
            both = "" if canonical in SECRET_PLACES else f", as {values[canonical]!r} and {value!r}"
            raise OptionError(f"is given twice{both}", option=canonical)
        values[canonical] = value
    return values


def parse_addresses(values: Mapping[str, str]) -> tuple[str, ...]:
    """Parse the nameservers in the option ``namesrvAddr``."""
    text = values.get("namesrvAddr", "")
    addresses = split_addresses(text)
    if not addresses:
        step = "as in .option('namesrvAddr', '127.0.0.1:9876')"
        raise OptionError("is missing", option="namesrvAddr", next_step=step)
    for address in addresses:
        try:
            parse_address(address)
        except ValueError as error:
            raise OptionError(f"is invalid: {error}", option="namesrvAddr") from error
    return addresses


def parse_topics(values: Mapping[str, str], *, also: str | None = None) -> tuple[tuple[str, ...], str | None]:
    """Parse ``topic``, ``subscribe`` or ``subscribePattern``: names of topics, or a pattern.

    :param also: another option that may be given in place of these three.
    :raises OptionError: none or more than one of these options is given, or a name is not allowed.
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
            reason = f"must be a regular expression, not {text!r}: {error}"
            raise OptionError(reason, option="subscribePattern") from error
        return (), text
    topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not topics:
        raise OptionError("names no topic", option=given[0])
    return tuple(parse_option(given[0], TOPIC, topic) for topic in topics), None


def demand_present(
    wanted: Iterable[str],
    there: Iterable[str],
    beginning: str,
    *,
    next_step: str,
    known: Callable[[], Iterable[str]] | None = None,
) -> None:
    """Check that all requested topics exist.

    :param beginning: beginning of the error; the names of the missing topics follow it.
    :param next_step: next step for the user if no similar name is known.
    :param known: function that returns all existing names, if ``there`` contains only some of them; called only to
        build the error.
    :raises OptionError: a requested topic does not exist.
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


def demand_forward(begin: str, begin_ms: int | None, end: str, end_ms: int | None) -> None:
    """Check that a time range does not end before it begins. None means no limit.

    :raises OptionError: the range ends before it begins; the error names both limits.
    """
    if begin_ms is not None and end_ms is not None and begin_ms > end_ms:
        raise OptionError(f"{end} is before {begin}", next_step="check whether they are swapped")
