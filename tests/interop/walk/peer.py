"""The same frames put to the servers of both systems, and how the answers differ.

A difference is written as words: ``code 1 != 0`` (then fields and body are not compared), ``remark``, ``form`` (JSON or
binary header), ``+field x`` for a field of the header that only ours has and ``-field x`` for one that only Apache's
has, and the same for the body with ``+body path`` and ``-body path``. What depends on addresses and times is compared
by its form; what each system makes when it first needs it (topics and offsets of half messages, progress of delay
levels) is not compared.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cometmq import fastjson
from cometmq.fastjson import FastjsonError
from cometmq.message.record import iter_records
from cometmq.remoting.blocking import BlockingConnection
from cometmq.remoting.codes import CURRENT_VERSION
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.frame import JSON

APACHES_VERSION = 407
"""V4_9_7; answers of ours name V4_9_8."""
ANSWER_SECONDS = 15.0
PLACE = re.compile(r"_/.*")
"""Part of names that depends on where a broker keeps its store."""
MADE_LATER = re.compile(r"has RMQ_SYS_TRANS_|\.scheduleMessageOffset_")
"""Made by either system in its own time."""
MAPS = frozenset(
    {
        "brokerAddrTable",
        "brokerAddrs",
        "clusterAddrTable",
        "consumeStatsList",
        "consumerTable",
        "correctionOffsets",
        "data",
        "messageQueueTable",
        "offsetTable",
        "statsTable",
        "subscriptionGroupTable",
        "subscriptionTable",
        "topicConfigTable",
    }
)
"""Fields that hold a map by names or queues, of which all entries have one form."""
JAVA_ERROR = re.compile(r"(java|com|org)\.[\w.]+(Exception|Error)")
"""Remarks that are a Java exception: any words of ours will do."""


@dataclass(frozen=True)
class Case:
    """One request."""

    name: str
    code: int
    fields: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    serialize_type: int = JSON
    version: int = 407
    language: str = "JAVA"


class Peer:
    """A connection to a server of either system; requests that it sends meanwhile are passed over."""

    def __init__(self, address: str) -> None:
        self._connection = BlockingConnection(address, ANSWER_SECONDS)
        self._opaques = itertools.count(1000)

    def ask(self, case: Case) -> RemotingCommand:
        """The answer to a request."""
        opaque = next(self._opaques)
        request = RemotingCommand(
            code=case.code,
            opaque=opaque,
            language=case.language,
            version=case.version,
            ext_fields=dict(case.fields),
            body=case.body,
            serialize_type=case.serialize_type,
        )
        self._connection.send(request.encode())
        while True:
            answer = self._connection.receive(ANSWER_SECONDS)
            if answer.is_response and answer.opaque == opaque:
                return answer

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def differences(ours: RemotingCommand, theirs: RemotingCommand) -> set[str]:
    """Every difference between two answers to the same request."""
    found = set()
    if ours.code != theirs.code:
        found.add(f"code {ours.code} != {theirs.code}")
    if _words(ours.remark) != _words(theirs.remark) and not (ours.remark and JAVA_ERROR.search(theirs.remark or "")):
        found.add("remark")
    if ours.serialize_type != theirs.serialize_type:
        found.add("form")
    if (ours.language, ours.flag, ours.version) != (theirs.language, theirs.flag, CURRENT_VERSION):
        found.add("head")
    if theirs.version != APACHES_VERSION:
        found.add("version")
    if ours.code != theirs.code:
        return found
    found |= _both_ways("field", _fields(ours), _fields(theirs))
    found |= _both_ways("body", set(_body(ours.body)), set(_body(theirs.body)))
    return found


def _both_ways(what: str, ours: set[str], theirs: set[str]) -> set[str]:
    return {
        f"{sign}{what} {name}"
        for sign, names in (("+", ours - theirs), ("-", theirs - ours))
        for name in names
        if not MADE_LATER.search(name)
    }


def _words(remark: str | None) -> str | None:
    return None if not remark else re.sub(r"127\.0\.0\.1:\d+|\d{5,}", "N", remark).strip()


def _fields(answer: RemotingCommand) -> set[str]:
    return {f"{name}={_value(name, value)}" for name, value in answer.ext_fields.items()}


def _value(name: str, value: str) -> str:
    if name in {
        "msgId",
        "transactionId",
        "version",
        "MSG_REGION",
        "indexLastUpdateTimestamp",
        "indexLastUpdatePhyoffset",
        "timestamp",
    }:
        return "…"
    return value if not re.fullmatch(r"\d{6,}", value) else "number"


def _body(body: bytes) -> Iterator[str]:
    if not body:
        return
    try:
        yield from _paths(fastjson.loads(body), "")
    except (FastjsonError, UnicodeDecodeError):
        if body[4:8] == b"\xda\xa3\x20\xa7":
            for record in iter_records(body):
                yield f"record {record.topic} {record.queue_id} {record.queue_offset}"
        else:
            yield from (line.partition("=")[0] for line in body.decode(errors="replace").splitlines())


def _paths(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, fastjson.ObjectKeyMap):
        for key, item in value:
            yield from _paths(key, f"{path}<key>")
            yield from _paths(item, f"{path}.*")
    elif isinstance(value, dict):
        yield f"{path}{{}}"
        if path.rpartition(".")[2] in MAPS:
            yield from (f"{path} has {key}" for key in value)
        collapsed = path.rpartition(".")[2] in MAPS or (value and all(key.isdigit() for key in value))
        for name, item in value.items():
            key = PLACE.sub("_", name)
            yield from _paths(item, f"{path}.{'*' if collapsed else key}")
    elif isinstance(value, list):
        yield f"{path}[]"
        for item in value:
            yield from _paths(item, f"{path}[]") if isinstance(item, (dict, list)) else iter((f"{path}[]",))
    elif isinstance(value, bool) or value is None:
        yield f"{path}={json.dumps(value)}"
    else:
        yield f"{path}:{'number' if isinstance(value, (int, float)) else 'text'}"
