"""The configuration pages: brokers' and nameservers' keys that differ from their defaults, and changes at run time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlencode

from starlette.responses import Response

from cometmq.apache_keys import BROKER as BROKER_CLASSES
from cometmq.apache_keys import NAMESERVER as NAMESERVER_CLASSES
from cometmq.apache_keys import apache_keys
from cometmq.broker.config import BrokerConfig
from cometmq.client.admin.changes import Tables, changes_of
from cometmq.client.admin.configurations import BROKER, NAMESERVER, broker_configurations, namesrv_configurations
from cometmq.client.errors import BrokerError
from cometmq.console.listing import listing
from cometmq.console.page import Ask, FormError, NotFoundError, Plan, change, page
from cometmq.console.pages.topics import changes_table
from cometmq.limits import MAX_KEPT_VALUE_CHARS
from cometmq.namesrv.config import NamesrvConfig
from cometmq.options import ConfigError, Option, format_value, options_of, parse_value

KINDS: Final = (BROKER, NAMESERVER)
_CLASSES: Final = {BROKER: BROKER_CLASSES, NAMESERVER: NAMESERVER_CLASSES}
_TYPES: Final[Mapping[str, type]] = {BROKER: BrokerConfig, NAMESERVER: NamesrvConfig}


@dataclass(frozen=True)
class KeyLine:
    """A configuration key on one server."""

    server: str
    key: str
    value: str
    default: str | None
    """Default value, or ``None`` if it is unknown because the server is Apache's or the key has no effect."""
    runtime: bool
    """True if it is known that the key can be changed at run time."""

    @property
    def is_changed(self) -> bool:
        """Return True if the value differs from the default."""
        return self.value != self.default


async def show_list(ask: Ask) -> Response:
    """Show each server's keys whose values differ from the defaults, or all keys."""
    kind = _kind(ask, ask.text("kind") or BROKER)
    everything = ask.text("all") == "yes"
    tables = await _tables(ask, kind)
    server = ask.text("server")
    lines: dict[str, list[KeyLine]] = {}
    """Servers with the same value share one line on the page."""
    for name in sorted(tables):
        if server in ("", name):
            for line in _lines(kind, name, tables[name]):
                if everything or line.is_changed:
                    lines.setdefault(f"{line.key}={line.value}", []).append(line)
    found = listing(sorted(lines), ask.text("q"), ask.whole("page"))
    return ask.page(
        "configuration/rows.html" if ask.is_part else "configuration/list.html",
        kind=kind,
        servers=sorted(tables),
        server=server,
        everything=everything,
        found=found,
        lines=[lines[name] for name in found.names],
        foreign=[name for name, table in tables.items() if not _is_ours(kind, table)],
    )


async def show_key(ask: Ask) -> Response:
    """Show one key: its meaning, its values, and a form for a new value."""
    kind, key = _kind(ask, ask.path("kind")), ask.path("key")
    tables = await _tables(ask, kind)
    lines = [line for name in sorted(tables) for line in _lines(kind, name, tables[name]) if line.key == key]
    option = _options(kind).get(key)
    has_effect = option is not None
    option = option or apache_keys(_CLASSES[kind]).get(key)
    if not lines and (option is None or option.secret):
        raise NotFoundError(
            ask.t("no server reports the key {key}", key=key),
            next_step=ask.t("it may be a secret, which only the servers' files contain"),
        )
    return ask.page(
        "configuration/key.html",
        kind=kind,
        key=key,
        lines=lines,
        option=option,
        has_effect=has_effect,
        default=format_value(option.default) if option is not None and has_effect else None,
        may_alter=option is None or option.runtime,
        foreign=[name for name, table in tables.items() if not _is_ours(kind, table)],
        servers=sorted(tables),
        server=ask.text("server"),
        most=MAX_KEPT_VALUE_CHARS,
    )


async def alter(ask: Ask) -> Plan:
    """Set a key on one server or on all servers. The servers check the value again."""
    kind, key = _kind(ask, ask.path("kind")), ask.path("key")
    server, value = ask.text("server"), ask.text("value", longest=MAX_KEPT_VALUE_CHARS)
    tables = {name: table for name, table in (await _tables(ask, kind)).items() if server in ("", name)}
    if not tables:
        raise NotFoundError(ask.t("no server {name} answers", name=server))
    for table in tables.values():
        _check(ask, kind, key, value, table)
    changes = changes_of(tables, {key: value})
    if not changes:
        raise FormError(ask.t("{key} already has the value {value}", key=key, value=value))
    masters = await ask.admin.masters() if kind == BROKER else {}

    async def run() -> str:
        done: list[str] = []
        remarks: dict[str, None] = {}
        for one in changes:
            try:
                if kind == BROKER:
                    remark = await ask.admin.update_broker_config(masters[one.broker], {key: value})
                else:
                    remark = await ask.admin.update_namesrv_config(one.broker, {key: value})
            except BrokerError as error:
                if not done:
                    raise
                raise FormError(
                    ask.t(
                        "{done} have the new value, {name} refused it: {why}",
                        done=", ".join(done),
                        name=one.broker,
                        why=error.remark or error.message,
                    )
                ) from error
            done.append(one.broker)
            if remark:
                remarks[remark] = None
        return " ".join([ask.t("{key} is {value} now.", key=key, value=value), *remarks])

    return Plan(
        title=ask.t("Change {key}", key=key),
        sentence=ask.t("The value changes while the servers run. Servers with a configuration file save it there."),
        action=ask.t("Change it"),
        what=f"{kind}.config",
        subject=key,
        run=run,
        then=f"/configuration?{urlencode({'kind': kind, 'q': key, 'all': 'yes'})}",
        back=f"/configuration/{kind}/{quote(key, safe='')}",
        table=changes_table(ask, changes),
        details={one.broker: f"{one.old} -> {one.new}" for one in changes},
    )


def _kind(ask: Ask, kind: str) -> str:
    if kind not in KINDS:
        raise NotFoundError(ask.t("{kind} is not a kind of server", kind=kind))
    return kind


async def _tables(ask: Ask, kind: str) -> Tables:
    if kind == NAMESERVER:
        return await namesrv_configurations(ask.admin, ask.console.nameservers)
    return await broker_configurations(ask.admin)


def _options(kind: str) -> Mapping[str, Option]:
    return {found.key: found for found in options_of(_TYPES[kind]).values()}


def _is_ours(kind: str, table: Mapping[str, str]) -> bool:
    """Return True if a server is a CometMQ server, which reports keys that Apache's servers lack."""
    return any(key in table for key in _options(kind).keys() - apache_keys(_CLASSES[kind]).keys())


def _lines(kind: str, server: str, table: Mapping[str, str]) -> list[KeyLine]:
    options: Mapping[str, Option] = _options(kind) if _is_ours(kind, table) else {}
    return [
        KeyLine(
            server=server,
            key=key,
            value=value,
            default=format_value(options[key].default) if key in options else None,
            runtime=key not in options or options[key].runtime,
        )
        for key, value in table.items()
    ]


def _check(ask: Ask, kind: str, key: str, value: str, table: Mapping[str, str]) -> None:
    """Reject a change that the server would reject, before anything is changed.

    :raises FormError: the key cannot change at run time, or the value is not allowed.
    """
    if not _is_ours(kind, table):
        return  # Apache's servers have their own rules, and report violations
    option = _options(kind).get(key) or apache_keys(_CLASSES[kind]).get(key)
    if option is None or option.secret:
        raise NotFoundError(ask.t("no server reports the key {key}", key=key))
    if not option.runtime:
        raise FormError(
            ask.t("{key} cannot change while the server runs", key=key),
            next_step=ask.t("change it in the server's file, and restart the server"),
        )
    try:
        parse_value(option, value)
    except ConfigError as error:
        raise FormError(error.message) from error


ROUTES = (
    page("/configuration", show_list),
    page("/configuration/{kind}/{key}", show_key),
    change("/configuration/{kind}/{key}", alter),
)
