"""The process of the archive reader: answers the frames of one broker until the broker closes the socket."""

from __future__ import annotations

import os
import resource
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final

from cometmq.clock import SYSTEM_CLOCK
from cometmq.errors import CometMQError
from cometmq.storage import StorageOptions, StorageUnavailableError, open_storage
from cometmq.tier.catalog import Catalog
from cometmq.tier.frames import (
    LENGTHS,
    Extent,
    Extents,
    Failed,
    FindKey,
    FindPosition,
    FindTime,
    Lookup,
    Message,
    Open,
    Question,
    Read,
    Unreadable,
    decode_request,
    encode_frame,
)
from cometmq.tier.limits import (
    EXTENTS_IN_FRAME,
    EXTENTS_PAUSE_SECONDS,
    MEMORY_BYTES,
    READ_AHEAD_THREADS,
    REFRESH_SECONDS,
    WAITING_SECONDS,
)
from cometmq.tier.lookups import Lookups
from cometmq.tier.reader import ArchiveReader
from cometmq.tier.rebuild import warm_up
from cometmq.tier.row_groups import RowGroups
from cometmq.tier.shares import SharedThreads

_NICE: Final = 5
"""The broker's work goes first."""

_ByQueue = dict[tuple[str, int], Extent]
_Answer = tuple[Message, bytes | memoryview]


class ReaderProcess:
    """Answers questions from threads, and reports the archived queues."""

    def __init__(self, broker: socket.socket) -> None:
        self._socket = broker
        self._incoming = broker.makefile("rb")
        self._sending = threading.Lock()
        self._threads = SharedThreads()
        self._lookups = ThreadPoolExecutor(1, "look-up")
        """Lookups take long; reads do not wait for them."""
        self._ended = threading.Event()

    def run(self) -> None:
        """Answer questions until the broker closes the socket."""
        opened = self._receive()
        if not isinstance(opened, Open):
            return
        try:
            storage = open_storage(opened.url, StorageOptions.from_texts(opened.options))
        except CometMQError as error:
            self._send(Unreadable(str(error), may_pass=False))
            self._receive()  # until the broker closes the socket
            return
        warm_up()
        catalog = Catalog(storage, opened.broker)
        groups = RowGroups(storage, ThreadPoolExecutor(READ_AHEAD_THREADS, "read-ahead"))
        reader, lookups = ArchiveReader(catalog, groups), Lookups(catalog, groups)
        threading.Thread(target=self._refresh, args=(catalog,), daemon=True).start()

        def answer(question: Question) -> _Answer:
            match question:
                case Read():
                    return reader.read(question)
                case FindTime():
                    return reader.find_time(question), b""
                case FindPosition():
                    return lookups.find_position(question)
                case FindKey():
                    return lookups.find_key(question)

        def work(question: Question, received: float) -> None:
            if SYSTEM_CLOCK.monotonic() - received > WAITING_SECONDS:
                return
            try:
                message, payload = answer(question)
            except CometMQError as error:
                message, payload = Failed(question.number, str(error)), b""
            except Exception as error:
                message, payload = Failed(question.number, f"{type(error).__name__}: {error}"), b""
            self._send(message, payload)

        while (request := self._receive()) is not None:
            if not isinstance(request, Open):
                begin = partial(work, request, SYSTEM_CLOCK.monotonic())
                if isinstance(request, Lookup):
                    self._lookups.submit(begin)
                else:
                    self._threads.submit((request.topic, request.queue_id), begin)
        self._ended.set()

    def _refresh(self, catalog: Catalog) -> None:
        reported: dict[tuple[str, int], Extent] = {}
        version = 0
        while not self._ended.is_set():
            try:
                catalog.refresh()
                if catalog.version != version:  # a reader at the archive's end may have read the new commits
                    before = reported if version else None
                    version = catalog.version
                    reported = self._report(catalog.extents(), before)
            except CometMQError as error:
                self._send(Unreadable(str(error), may_pass=isinstance(error, StorageUnavailableError)))
                version = 0
            except Exception as error:  # this thread must go on, since no other looks for new commits
                self._send(Unreadable(f"{type(error).__name__}: {error}", may_pass=False))
                version = 0
            self._ended.wait(REFRESH_SECONDS)

    def _report(self, extents: _ByQueue, before: _ByQueue | None) -> _ByQueue:
        """Send the extents that have changed, or all of them; return them all."""
        known = before or {}
        changed = [extent for queue, extent in extents.items() if known.get(queue) != extent]
        changed += [Extent(*queue, 0, 0, 0) for queue in known.keys() - extents.keys()]
        starts = range(0, max(len(changed), 1), EXTENTS_IN_FRAME)
        for start in starts:
            queues = changed[start : start + EXTENTS_IN_FRAME]
            self._send(Extents(queues, is_whole=before is None, is_last=start == starts[-1]))
            self._ended.wait(EXTENTS_PAUSE_SECONDS)
        return extents

    def _receive(self) -> Open | Question | None:
        """Return the next request, or None at the end."""
        try:
            lengths = self._incoming.read(LENGTHS.size)
            if len(lengths) < LENGTHS.size:
                return None
            size, _ = LENGTHS.unpack(lengths)
            encoded = self._incoming.read(size)
        except ConnectionError:  # the broker has ended without reading all answers
            return None
        return decode_request(encoded) if len(encoded) == size else None

    def _send(self, message: Message, payload: bytes | memoryview = b"") -> None:
        with self._sending, suppress(OSError):  # the broker has gone
            self._socket.sendall(encode_frame(message, len(payload)))
            self._socket.sendall(payload)


def limit_memory() -> None:
    """Let the process fail to allocate memory before it takes that of the broker and of other programs."""
    with suppress(OSError, ValueError):  # the limit of the account is lower
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))


def run(descriptor: int) -> None:
    """Run the archive reader on an inherited socket, and end the process."""
    with suppress(OSError):
        os.nice(_NICE)
    limit_memory()
    with socket.socket(fileno=descriptor) as broker:
        ReaderProcess(broker).run()
    os._exit(0)  # threads may wait for a storage
