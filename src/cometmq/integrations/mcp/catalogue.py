"""Tools: their names, levels and parameters. A parameter class is the schema that clients see, and checks arguments."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from cometmq.client.admin import Admin
from cometmq.clock import Clock
from cometmq.errors import CometMQError
from cometmq.integrations.mcp.options import DEFAULT_ROWS, MAX_ARGUMENT_CHARS, MAX_ROWS, McpOptions
from cometmq.integrations.mcp.plans import Plan
from cometmq.integrations.mcp.untrusted import Untrusted
from cometmq.message.queue_names import topic_spelled

P = TypeVar("P", bound="Parameters")
T = TypeVar("T")
D = TypeVar("D")

Text = Annotated[str, Meta(min_length=1, max_length=MAX_ARGUMENT_CHARS)]
Whole = Annotated[int, Meta(ge=0, le=2**53 - 1)]
"""A number that JavaScript clients keep exactly."""

INSTANCE: Final = "default"
"""The only instance: the cluster of the server's nameserver."""


_TOPICS: Final = ("topicName", "sourceTopic")
"""Parameters that are topics, or other tools' queues in their own spelling."""
_NAMES_ONLY: Final = frozenset({"rmq.topic.update", "rmq.message.send"})
"""Tools that may create a topic: a mistyped name must not become a queue's topic."""


class ArgumentError(CometMQError):
    """An argument is missing, unknown or invalid."""


class Parameters(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename={}):
    """The parameters that all tools have."""

    instance_id: Annotated[
        str | UnsetType, Meta(description="Optional, for compatibility with Studio: the server has one cluster.")
    ] = msgspec.field(default=UNSET, name="instanceId")


class Page(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A part of a long list."""

    page: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    page_size: Annotated[int, Meta(ge=1, le=MAX_ROWS)] = msgspec.field(default=DEFAULT_ROWS, name="pageSize")

    def of(self, rows: list[Any]) -> list[Any]:
        """Return the rows on this page."""
        first = (self.page - 1) * self.page_size
        return rows[first : first + self.page_size]

    def fields(self, rows: list[Any]) -> dict[str, Any]:
        """Return the fields that describe the page of a list."""
        is_last = self.page * self.page_size >= len(rows)
        return {"page": self.page, "pageSize": self.page_size, "total": len(rows), "truncated": not is_last}


class Period(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A range of times, in epoch milliseconds."""

    start_time: Whole = msgspec.field(default=0, name="startTime")
    end_time: Whole = msgspec.field(default=2**53 - 1, name="endTime")


class Confirmed(Parameters, kw_only=True):
    """The parameters that all tools that change something have."""

    dry_run: Annotated[bool, Meta(description="Only preview the change. The default without confirm_token.")] = False
    confirm_token: Annotated[
        str, Meta(max_length=100, description="The token of the preview, which permits exactly this change, once.")
    ] = ""


class Drastic(Confirmed, kw_only=True):
    """The parameters of tools of level L3."""

    break_glass: Annotated[bool, Meta(description="Must be true: the user has agreed to a loss of data.")] = False
    reason: Annotated[str, Meta(max_length=MAX_ARGUMENT_CHARS, description="The user's reason, for the audit log.")] = (
        ""
    )


@dataclass(frozen=True)
class Call:
    """The objects that a tool uses during one call."""

    admin: Admin
    untrusted: Untrusted
    options: McpOptions
    clock: Clock


@dataclass(frozen=True)
class Tool(Generic[P]):
    """A tool. One that changes something returns a plan."""

    name: str
    """The name in Studio's catalogue."""
    level: str
    """L1 reads, L2 changes, and L3 deletes."""
    description: str
    parameters: type[P]
    run: Callable[[Call, P], Awaitable[dict[str, Any] | Plan]]

    @property
    def portable_name(self) -> str:
        """Return the name for clients that refuse dots."""
        return self.name.replace(".", "_")

    @property
    def reads(self) -> bool:
        """Return whether the tool changes nothing."""
        return self.level == "L1"

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the parameters, without references, unions or nulls."""
        document = msgspec.json.schema(self.parameters)
        definitions = document.pop("$defs")
        schema: dict[str, Any] = _inlined(definitions[self.parameters.__name__], definitions)
        schema.pop("title", None)
        schema.pop("description", None)
        return schema

    def parse(self, arguments: Mapping[str, Any]) -> P:
        """Check the arguments. Numbers and truth values may be texts, as some models write them.

        :raises ArgumentError: an argument is missing, unknown or invalid.
        """
        given = {name: value for name, value in arguments.items() if value not in (None, "")}
        try:
            json.dumps(given, ensure_ascii=False).encode()
        except (UnicodeEncodeError, RecursionError):
            raise ArgumentError(f"{self.name}: an argument is nested too deeply, or has half a character") from None
        if self.name not in _NAMES_ONLY:
            given |= {name: topic_spelled(given[name]) for name in _TOPICS if isinstance(given.get(name), str)}
        try:
            return msgspec.convert(given, self.parameters, strict=False)
        except msgspec.ValidationError as error:
            known = ", ".join(self.schema()["properties"])
            raise ArgumentError(f"{self.name}: {error}", next_step=f"its parameters are {known}") from None


def given(value: T | UnsetType, otherwise: D) -> T | D:
    """Return an optional parameter, or another value if it was not given."""
    return otherwise if isinstance(value, UnsetType) else value


def _inlined(node: Any, definitions: Mapping[str, Any]) -> Any:
    if isinstance(node, list):
        return [_inlined(one, definitions) for one in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inlined(definitions[node["$ref"].rsplit("/", 1)[1]], definitions)
    if list(node.get("anyOf", [])) and len(node["anyOf"]) == 1:
        return _inlined(node["anyOf"][0], definitions)
    return {name: _inlined(value, definitions) for name, value in node.items() if name not in ("default", "title")}
