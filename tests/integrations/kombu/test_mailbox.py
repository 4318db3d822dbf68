"""The passage from the thread of the connections to that of a Kombu connection."""

from __future__ import annotations

import select
import threading
from contextlib import closing
from types import SimpleNamespace

import pytest
from tests.helpers.waiting import wait_for
from tests.integrations.kombu.conftest import Connect

from cometmq.integrations.kombu import transport
from cometmq.integrations.kombu.mailbox import Mailbox


def test_a_connection_has_its_mailbox_before_a_message_can_arrive(
    connect: Connect, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    makers: list[threading.Thread] = []

    class Noted(Mailbox):
        def __init__(self) -> None:
            makers.append(threading.current_thread())
            super().__init__()

    monkeypatch.setattr(transport, "Mailbox", Noted)
    with connect().SimpleQueue(name) as queue:
        queue.put("x")
        wait_for(lambda: makers, "a message that arrives")
        assert queue.get(timeout=10).payload == "x"
    assert makers == [threading.current_thread()]


def test_items_after_an_interrupted_wait_make_the_descriptor_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Mailbox()) as mailbox:
        mailbox.put("first")
        assert mailbox.take() == "first"
        reader = mailbox._reader

        def interrupted(size: int) -> bytes:
            reader.recv(size)
            raise KeyboardInterrupt  # as a signal handler that runs once the call is over

        with monkeypatch.context() as patched:
            patched.setattr(
                mailbox,
                "_reader",
                SimpleNamespace(recv=interrupted, settimeout=reader.settimeout, setblocking=reader.setblocking),
            )
            with pytest.raises(KeyboardInterrupt):
                mailbox.wait(None)
        mailbox.put("second")
        assert select.select([mailbox.fileno()], [], [], 0)[0]
        assert mailbox.wait(0)
        assert mailbox.take() == "second"
