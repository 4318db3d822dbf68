"""A received message as a row of output."""

from __future__ import annotations

import base64
from typing import Any

from cometmq.cli.moments import local_time
from cometmq.message.message import MessageExt
from cometmq.message.properties import KEYS, TAGS, UNIQ_KEY


def message_row(message: MessageExt) -> dict[str, Any]:
    """All of a message; a body that is not UTF-8 stands as ``body_base64``."""
    shown = {name: value for name, value in message.properties.items() if name not in (KEYS, TAGS, UNIQ_KEY)}
    row: dict[str, Any] = {
        "topic": message.topic,
        "broker": message.broker_name or None,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "tags": message.tags,
        "keys": list(message.keys),
        "msg_id": message.msg_id,
        "offset_msg_id": message.offset_msg_id,
        "born": local_time(message.born_timestamp),
        "born_host": message.born_host,
        "stored": local_time(message.store_timestamp),
        "store_host": message.store_host,
        "reconsume_times": message.reconsume_times,
        "properties": shown,
    }
    try:
        row["body"] = message.body.decode()
    except UnicodeDecodeError:
        row["body_base64"] = base64.b64encode(message.body).decode()
    return row
