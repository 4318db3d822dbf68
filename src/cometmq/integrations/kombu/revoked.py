"""Stores the state of recalled tasks, so that nobody waits for their results."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any, Final

from cometmq.integrations.kombu.settings import Settings
from cometmq.threads import call_in_forked_children

log = logging.getLogger(__name__)


class RevokedStates:
    """Stores the state ``REVOKED`` in the result backend of the Celery application with a connection's settings."""

    def __init__(self) -> None:
        self._forget()
        call_in_forked_children(self._forget)

    def _forget(self) -> None:
        self._later: ThreadPoolExecutor | None = None

    def store(self, settings: Settings, task_id: str, reply_to: str | None) -> None:
        """Store the state of one task.

        A result that is sent by the broker needs a connection of Celery's pool, of which the caller holds two. So it is
        sent by another thread: callers would otherwise wait for each other.
        """
        app = next(_apps_with(settings), None)
        if app is None:
            return
        if not hasattr(app.backend, "on_reply_declare"):  # a backend that sends no messages
            _store(app, task_id, reply_to)
            return
        if self._later is None:
            self._later = ThreadPoolExecutor(1, thread_name_prefix="cometmq-revoked")
        try:
            self._later.submit(_store, app, task_id, reply_to)
        except RuntimeError as error:
            log.warning("the state of the recalled task %s is not stored: %s", task_id, error)  # Python exits


def _store(app: Any, task_id: str, reply_to: str | None) -> None:
    try:
        request = import_module("celery.app.task").Context(id=task_id, correlation_id=task_id, reply_to=reply_to)
        app.backend.mark_as_revoked(task_id, "revoked", request=request, store_result=True)
    except Exception as error:  # a result backend may raise anything
        log.warning("the state of the recalled task %s is not stored: %r", task_id, error)


def _apps_with(settings: Settings) -> Iterator[Any]:
    """Yield the applications with these settings; the current one, which each thread has of its own, is the first."""
    state = sys.modules.get("celery._state")
    if state is None:
        return
    current = state.get_current_app()
    for app in (current, *(app for app in state._get_active_apps() if app is not current)):
        try:
            client = app.connection_for_write()
            is_found = str(client.transport_cls).startswith("cometmq") and Settings.of(client) == settings
        except Exception as error:  # settings of an application that is not used here
            log.debug("the settings of application %s cannot be read: %r", app.main, error)
        else:
            if is_found:
                yield app


REVOKED_STATES: Final = RevokedStates()
