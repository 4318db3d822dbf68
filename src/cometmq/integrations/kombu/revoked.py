"""The tasks that remote control revokes, and the state of those that are recalled: nobody waits for their results."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple, Self

from kombu import Producer

from cometmq.integrations.kombu.envelope import Payload
from cometmq.integrations.kombu.settings import Settings

log = logging.getLogger(__name__)


class Recalled(NamedTuple):
    """Those that have to hear of the recall of a task."""

    reply_to: str | None
    """The queue to which the task's result goes."""
    chord: Mapping[str, Any] = {}
    """The attributes of a request by which Celery finds the chord whose part the task is."""

    @classmethod
    def of(cls, payload: Payload) -> Self:
        """Return those that have to hear of the recall of the task of a message; a chord only if the body is JSON."""
        reply_to, headers = payload["properties"].get("reply_to"), payload.get("headers") or {}
        group, chord = headers.get("group"), None
        if group and payload.get("content-type") == "application/json":
            with suppress(ValueError, TypeError, LookupError, RecursionError):
                chord = json.loads(payload["body"])[2]["chord"]
        found = {"group": group, "group_index": headers.get("group_index"), "chord": chord} if chord else {}
        return cls(reply_to if isinstance(reply_to, str) else None, found)


def revoked_by(command: Payload) -> list[str]:
    """Return the IDs of the tasks that a remote control command revokes for all workers."""
    try:
        found = json.loads(command["body"])
        if found["method"] != "revoke" or found.get("destination"):
            return []
        ids = found["arguments"]["task_id"] or []
        return [ids] if isinstance(ids, str) else list(ids)
    except (ValueError, KeyError, TypeError, AttributeError):
        return []


def store_revoked(channel: Any, settings: Settings, recalled: Mapping[str, Recalled]) -> None:
    """Store the state ``REVOKED`` of tasks in the result backends of Celery's applications with these settings.

    A backend that sends results through the broker would take further connections of Celery's pool, of which the
    caller holds two, and try again for long. So it uses the caller's channel, once.

    :param recalled: the tasks, by their IDs.
    """
    backends: dict[str, Any] = {}
    for app in _apps_with(settings):
        try:
            backends.setdefault(app.backend.as_uri(), app.backend)
        except Exception as error:  # settings of an application that is not used here
            log.debug("the result backend of application %s cannot be used: %r", app.main, error)
    if not backends and "celery" in sys.modules:
        log.warning("the states of recalled tasks are not stored, because no application of Celery has their broker")
    for backend in backends.values():
        for task_id, task in recalled.items():
            try:
                _store(backend, channel, task_id, task)
            except Exception as error:  # a result backend may raise anything
                log.warning("the state of the recalled task %s is not stored: %r", task_id, error)


def _store(backend: Any, channel: Any, task_id: str, task: Recalled) -> None:
    context = import_module("celery.app.task").Context
    request = context(id=task_id, correlation_id=task_id, reply_to=task.reply_to, **task.chord)
    if not hasattr(backend, "on_reply_declare"):  # a backend that sends no messages
        backend.mark_as_revoked(task_id, "revoked", request=request, store_result=True)
    elif task.reply_to:
        error = import_module("celery.exceptions").TaskRevokedError("revoked")
        Producer(channel).publish(
            backend._to_result(task_id, "REVOKED", error, None, request),
            exchange=backend.exchange,
            routing_key=task.reply_to,
            correlation_id=task_id,
            serializer=backend.serializer,
            delivery_mode=backend.delivery_mode,
        )


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
