"""The passage from the thread of the connections to that of a Kombu connection."""

from __future__ import annotations

import select
from contextlib import closing
from types import SimpleNamespace

import pytest

from cometmq.integrations.kombu.mailbox import Mailbox


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
