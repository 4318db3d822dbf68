"""The table of tasks and their results.

Arguments, results and errors are JSON in text columns: columns of the type JSON cannot hold all strings in some
databases, for example PostgreSQL the character NUL.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from cometmq.integrations.django.api import TaskResultStatus


class StoredTask(models.Model):
    """A task: what is to run, and what has come of it."""

    id = models.CharField(primary_key=True, max_length=64)
    path = models.TextField("task")
    backend = models.CharField(max_length=255)
    queue_name = models.CharField("queue", max_length=255)
    priority = models.SmallIntegerField(default=0)
    run_after = models.DateTimeField(null=True)
    status = models.CharField(max_length=10, choices=TaskResultStatus.choices, default=TaskResultStatus.READY)
    args = models.TextField(default="[]")
    kwargs = models.TextField(default="{}")
    return_value = models.TextField(default="null")
    errors = models.TextField(default="[]")
    worker_ids = models.TextField(default="[]")
    attempts = models.IntegerField(default=0)
    message_id = models.CharField(max_length=64, default="")
    send_error = models.TextField(default="")
    enqueued_at = models.DateTimeField()
    sent_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    last_attempted_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        """The table's name and order."""

        app_label = "cometmq"
        db_table = "cometmq_task"
        verbose_name = "task"
        ordering: ClassVar = ["-enqueued_at"]
        indexes: ClassVar = [
            models.Index(fields=["enqueued_at"], name="cometmq_task_enqueued"),
            models.Index(fields=["sent_at", "status"], name="cometmq_task_unsent"),
            models.Index(fields=["finished_at"], name="cometmq_task_finished"),
        ]

    def __str__(self) -> str:
        return f"{self.path} {self.id}"
