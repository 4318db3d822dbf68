"""The table of tasks and their results."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """Create the table."""

    initial = True
    dependencies: ClassVar[list[Any]] = []
    operations: ClassVar = [
        migrations.CreateModel(
            name="StoredTask",
            fields=[
                ("id", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("path", models.TextField(verbose_name="task")),
                ("backend", models.CharField(max_length=255)),
                ("queue_name", models.CharField(max_length=255, verbose_name="queue")),
                ("priority", models.SmallIntegerField(default=0)),
                ("run_after", models.DateTimeField(null=True)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("READY", "Ready"),
                            ("RUNNING", "Running"),
                            ("FAILED", "Failed"),
                            ("SUCCESSFUL", "Successful"),
                        ],
                        default="READY",
                        max_length=10,
                    ),
                ),
                ("args", models.TextField(default="[]")),
                ("kwargs", models.TextField(default="{}")),
                ("return_value", models.TextField(default="null")),
                ("errors", models.TextField(default="[]")),
                ("worker_ids", models.TextField(default="[]")),
                ("attempts", models.IntegerField(default=0)),
                ("message_id", models.CharField(default="", max_length=64)),
                ("send_error", models.TextField(default="")),
                ("enqueued_at", models.DateTimeField()),
                ("sent_at", models.DateTimeField(null=True)),
                ("started_at", models.DateTimeField(null=True)),
                ("last_attempted_at", models.DateTimeField(null=True)),
                ("finished_at", models.DateTimeField(null=True)),
            ],
            options={
                "verbose_name": "task",
                "db_table": "cometmq_task",
                "ordering": ["-enqueued_at"],
                "indexes": [
                    models.Index(fields=["enqueued_at"], name="cometmq_task_enqueued"),
                    models.Index(fields=["sent_at", "status"], name="cometmq_task_unsent"),
                    models.Index(fields=["finished_at"], name="cometmq_task_finished"),
                ],
            },
        ),
    ]
