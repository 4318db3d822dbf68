"""The connections of a process, which its Kombu connections share: no thread waits for what another one asks."""

from __future__ import annotations

import socket
import threading

import pytest
from kombu import Connection

from cometmq.integrations.kombu.sessions import SESSIONS, SyncSession
from cometmq.integrations.kombu.settings import Settings


def settings_of(url: str) -> Settings:
    with Connection(url) as connection:
        return Settings.of(connection)


def test_a_session_is_there_before_the_nameserver_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = settings_of(f"cometmq://127.0.0.1:{silent.getsockname()[1]}")
        first = SESSIONS.acquire(settings)
        assert SESSIONS.acquire(settings) is first
        for _ in range(2):
            SESSIONS.release(first)
        second = SESSIONS.acquire(settings)
        assert second is not first
        SESSIONS.release(second)


def test_a_session_that_closes_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (settings_of(f"cometmq://127.0.0.1:1/{name}") for name in "ab")
    closing, go_on, close = threading.Event(), threading.Event(), SyncSession.close

    def slowly(session: SyncSession) -> None:
        if session.settings == first:
            closing.set()
            go_on.wait()
        close(session)

    monkeypatch.setattr(SyncSession, "close", slowly)
    threads = [threading.Thread(target=lambda of=of: SESSIONS.release(SESSIONS.acquire(of))) for of in (first, second)]
    threads[0].start()
    closing.wait()
    threads[1].start()
    threads[1].join(10)
    is_held_up = threads[1].is_alive()
    go_on.set()
    for thread in threads:
        thread.join()
    assert not is_held_up
