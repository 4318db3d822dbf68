"""The Django application: the table of tasks, the commands and the page of the admin."""

from __future__ import annotations

from django.apps import AppConfig


class CometMQConfig(AppConfig):
    """``cometmq.integrations.django`` in ``INSTALLED_APPS``."""

    name = "cometmq.integrations.django"
    label = "cometmq"
    verbose_name = "CometMQ"
    default_auto_field = "django.db.models.BigAutoField"
