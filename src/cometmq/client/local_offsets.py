"""Offsets of a broadcasting consumer, in a file of its host (``LocalFileOffsetStore``).

``<directory>/<clientId>/<group>/offsets.json``, in fastjson's form with queues as keys, as Java writes
it, with the version before beside it as ``offsets.json.bak``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from cometmq import fastjson
from cometmq.durable import replace_file
from cometmq.remoting.bodies import BodyError, MessageQueue, ResetOffsetBody, decode_body, to_builtins

log = logging.getLogger(__name__)


class LocalOffsets:
    """The offsets file of one client id and group."""

    def __init__(self, directory: Path, client_id: str, group: str) -> None:
        self.path = directory / client_id / group / "offsets.json"

    @property
    def _backup(self) -> Path:
        return self.path.with_name("offsets.json.bak")

    def load(self) -> dict[MessageQueue, int]:
        """The offsets kept; of the version before, when the file is damaged; empty when there is neither.

        :raises OSError: the file cannot be read.
        """
        for path in (self.path, self._backup):
            try:
                return dict(decode_body(ResetOffsetBody, path.read_bytes()).offset_table)
            except FileNotFoundError:
                continue
            except BodyError as error:
                log.warning("%s is damaged and left out: %s", path, error)
        return {}

    def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Keep these offsets; those of other queues in the file stay.

        :raises OSError: the file cannot be written.
        """
        merged = {**self.load(), **offsets}
        text = fastjson.dumps_pretty(to_builtins(ResetOffsetBody(offset_table=merged)))
        replace_file(self.path, text, backup=self._backup)
