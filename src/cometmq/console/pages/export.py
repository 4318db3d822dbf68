"""Exports the messages from a search as a file: JSON lines or CSV."""

from __future__ import annotations

import base64
import csv
import io
import json
from typing import Any, Final

from starlette.responses import Response

from cometmq.console.page import Ask, FormError, page
from cometmq.console.pages.messages import newest_of
from cometmq.message.message import MessageExt

MAX_MESSAGES: Final = 1_000
MAX_BYTES: Final = 32 * 1024 * 1024
"""Maximum total size of the bodies in one file. They are kept in memory while the file is written."""
_FIELDS: Final = (
    *("topic", "broker", "queue_id", "queue_offset", "stored", "born"),
    *("msg_id", "tags", "keys", "properties"),
)
_FORMULAS: Final = ("=", "+", "-", "@", "\t", "\r")
"""First characters that make spreadsheets interpret a cell as a formula."""


class _Budget:
    """Collects complete messages until they exceed a total size."""

    def __init__(self) -> None:
        self._left = MAX_BYTES

    def keep(self, message: MessageExt) -> dict[str, Any] | None:
        self._left -= message.store_size
        return row_of(message) if self._left >= 0 else None


def row_of(message: MessageExt) -> dict[str, Any]:
    """Return a message as a row. A body that is not UTF-8 becomes ``body_base64``."""
    row: dict[str, Any] = {
        "topic": message.topic,
        "broker": message.broker_name,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "stored": message.store_timestamp,
        "born": message.born_timestamp,
        "msg_id": message.msg_id,
        "tags": message.tags,
        "keys": list(message.keys),
        "properties": dict(message.properties),
    }
    try:
        row["body"] = message.body.decode()
    except UnicodeDecodeError:
        row["body_base64"] = base64.b64encode(message.body).decode()
    return row


async def export(ask: Ask) -> Response:
    """Return the newest messages from a search as a file."""
    form = ask.text("form")
    found = await newest_of(ask, MAX_MESSAGES, _Budget().keep)
    rows = [row for row in found.messages if row is not None]
    if form == "json":
        text, kind = "".join(json.dumps(row) + "\n" for row in rows), "application/x-ndjson"
    elif form == "csv":
        text, kind = _csv(rows), "text/csv; charset=utf-8"
    else:
        raise FormError(ask.t("{name} must be one of {choices}", name="form", choices="json, csv"))
    ending = "jsonl" if form == "json" else "csv"
    return Response(text, media_type=kind, headers={"Content-Disposition": f'attachment; filename="messages.{ending}"'})


def _csv(rows: list[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([*_FIELDS, "body", "body_base64"])
    for row in rows:
        texts = [_cell(row.get(name)) for name in (*_FIELDS, "body", "body_base64")]
        writer.writerow([f"'{text}" if text.startswith(_FORMULAS) else text for text in texts])
    return out.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value) if isinstance(value, (dict, list)) else str(value)


ROUTES = (page("/messages/export", export),)
