"""Tasks of Django: enqueue some, run them with a worker, and read their results.

python examples/tasks_of_django.py [NAMESRV]

A project in one file; in yours, the settings are in settings.py, and the worker is `manage.py cometmq_worker`.
"""

import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import django
from django.conf import settings

NAMESRV = sys.argv[1] if len(sys.argv) > 1 else "localhost:9876"

if __name__ == "__main__":
    settings.configure(
        INSTALLED_APPS=["cometmq.integrations.django", *(["django_tasks"] if django.VERSION < (6,) else [])],
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": Path(tempfile.mkdtemp(prefix="cometmq-example-")) / "tasks.sqlite3",
            }
        },
        TASKS={
            "default": {
                "BACKEND": "cometmq.integrations.django.CometMQBackend",
                "OPTIONS": {"namesrv": NAMESRV, "prefix": "example"},
            }
        },
        USE_TZ=True,
        TIME_ZONE="UTC",
    )
    django.setup()

from django.core.management import call_command  # noqa: E402
from django.db import transaction  # noqa: E402
from django.utils import timezone  # noqa: E402

try:
    from django.tasks import task
except ImportError:  # before Django 6
    from django_tasks import task


@task()
def greet(name: str) -> str:
    """Return a greeting."""
    return f"Hello, {name}!"


@task()
def divide(one: int, two: int) -> float:
    """Divide two numbers."""
    return one / two


def main() -> None:
    """Enqueue tasks, in a transaction and for later, run a worker until all are done, and print the results."""
    call_command("migrate", verbosity=0)
    with transaction.atomic():
        hello = greet.using(priority=50).enqueue("comet")
        print("sent when the transaction commits:", hello.id)
    later = greet.using(run_after=timezone.now() + timedelta(seconds=1)).enqueue("moon")
    wrong = divide.enqueue(1, 0)
    call_command("cometmq_worker", max_tasks=3)
    for result in (hello, later, wrong):
        result.refresh()
        outcome = result.return_value if result.status == "SUCCESSFUL" else result.errors[0].exception_class_path
        print(f"{result.task.name}: {result.status}, {outcome}")


if __name__ == "__main__":
    main()
