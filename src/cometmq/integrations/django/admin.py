"""The page of tasks in Django's admin: read only, with an action that sends tasks again."""

from __future__ import annotations

import json
from typing import Any, ClassVar
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.core.exceptions import ImproperlyConfigured
from django.utils.html import format_html, format_html_join

from cometmq.errors import CometMQError
from cometmq.integrations.django import results
from cometmq.integrations.django.api import task_backends
from cometmq.integrations.django.backend import CometMQBackend
from cometmq.integrations.django.models import StoredTask


def _backend_of(row: StoredTask) -> CometMQBackend | None:
    """Return the backend of a task, if the settings still have it."""
    try:
        backend = task_backends[row.backend]
    except ImproperlyConfigured:
        return None
    return backend if isinstance(backend, CometMQBackend) else None


def _console_of(row: StoredTask) -> str | None:
    """Return the address of a task's messages in the console, if the settings have the console's address."""
    backend = _backend_of(row)
    try:
        if backend is None or backend.settings.console is None:
            return None
        query = urlencode({"topic": backend.settings.topic(row.queue_name), "key": row.id})
    except CometMQError:
        return None  # an option is wrong, as manage.py check says
    return f"{backend.settings.console.rstrip('/')}/messages?{query}"


@admin.register(StoredTask)
class StoredTaskAdmin(admin.ModelAdmin):
    """Tasks and their results."""

    list_display = ("path", "queue_name", "status", "attempts", "enqueued_at", "sent_at", "finished_at", "id")
    list_display_links = ("path", "id")
    list_filter = ("status", ("sent_at", admin.EmptyFieldListFilter))
    search_fields = ("=id", "=queue_name", "path")
    show_full_result_count = False
    actions: ClassVar = ["send_again"]

    def get_queryset(self, request: Any) -> Any:
        """Return the tasks; a list does not read their values."""
        return super().get_queryset(request).defer("return_value", "errors")

    def has_add_permission(self, request: Any) -> bool:
        """Return false: tasks are enqueued by the application."""
        return False

    def get_readonly_fields(self, request: Any, obj: Any = None) -> list[str]:
        """Return all fields, errors as text, and the link to the console if there is one."""
        names = ["tracebacks" if field.name == "errors" else field.name for field in StoredTask._meta.fields]
        return names if obj is None or _console_of(obj) is None else [*names, "message"]

    def get_fields(self, request: Any, obj: Any = None) -> list[str]:
        """Return all fields."""
        return self.get_readonly_fields(request, obj)

    @admin.display(empty_value="-")
    def message(self, row: StoredTask) -> Any:
        """Return a link to the task's messages in the console."""
        address = _console_of(row)
        return None if address is None else format_html('<a href="{}">{}</a>', address, "in the console")

    def change_view(self, request: Any, object_id: str, form_url: str = "", extra_context: Any = None) -> Any:
        """Show a task without buttons that save it."""
        shown = {"title": "Task", "show_save": False, "show_save_and_continue": False, **(extra_context or {})}
        return super().change_view(request, object_id, form_url, shown)

    @admin.display(description="errors", empty_value="-")
    def tracebacks(self, row: StoredTask) -> Any:
        """Return the tracebacks of all attempts."""
        errors = [(error["traceback"],) for error in json.loads(row.errors)]
        return format_html_join("", '<pre style="white-space: pre-wrap; margin: 0 0 1em">{}</pre>', errors) or None

    @admin.action(description="Send the selected tasks again", permissions=["change"])
    def send_again(self, request: Any, selected: Any) -> None:
        """Send READY and FAILED tasks again; their attempts begin anew."""
        sent = 0
        for row in selected:
            backend = _backend_of(row)
            if backend is None:
                self.message_user(request, f"{row} belongs to no backend in TASKS: {row.backend}", messages.ERROR)
                continue
            if not results.make_ready(row, backend.settings.database):
                self.message_user(request, f"{row} is {row.status} and is not sent again", messages.WARNING)
                continue
            failure = backend.send(results.order_of(row))
            if failure is not None:
                self.message_user(request, f"{row} is not sent, a worker sends it later: {failure}", messages.ERROR)
                continue
            sent += 1
        self.message_user(request, "1 task is sent again" if sent == 1 else f"{sent} tasks are sent again")
