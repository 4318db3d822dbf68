"""A backend for Django's tasks: ``django.tasks`` of Django 6, or the package ``django-tasks`` with older versions.

``cometmq.integrations.django`` in ``INSTALLED_APPS`` adds the command ``manage.py cometmq_worker``, the table of
results and its page in the admin. ``docs/django.md`` documents the settings.

* ``api``: the names of Django's task framework
* ``options``: ``TASKS[…]["OPTIONS"]``
* ``backend``: ``enqueue`` and ``get_result``
* ``orders``: a task as a message
* ``results``: a task as a row of the table; ``models`` is the table
* ``connections``: the producers of a process
* ``worker``: receives tasks; ``running`` runs one; ``processes`` starts several workers
"""

from __future__ import annotations

from typing import Any

from cometmq.errors import require

require("cometmq.integrations.django", "django", "django")


def __getattr__(name: str) -> Any:
    """Load the backend when its name is used: Django imports this package before its settings are complete.

    :raises AttributeError: the package has no public name like this.
    """
    if name != "CometMQBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from cometmq.integrations.django.backend import CometMQBackend

    return CometMQBackend
