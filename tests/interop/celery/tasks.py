"""The tasks of the proofs, and their Celery application.

Its settings, as JSON, are in the environment variable :data:`SETTINGS`, and the path of the diary in :data:`DIARY`.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any, Final

from celery import Celery, signals
from tests.interop.celery.diary import Diary, Kind

SETTINGS: Final = "CELERY_PROOF_SETTINGS"
DIARY: Final = "CELERY_PROOF_DIARY"

settings: Final[dict[str, Any]] = json.loads(os.environ[SETTINGS])
if settings["broker_url"].startswith("cometmq"):
    importlib.import_module("cometmq.integrations.kombu")

diary: Final = Diary(Path(os.environ[DIARY]))
app: Final = Celery("proof", set_as_current=True)
app.conf.update({"task_ignore_result": True, "worker_redirect_stdouts": False, **settings})


def _begin(number: int) -> None:
    diary.note(Kind.BEGIN, number)


def _work(number: int, seconds: float) -> None:
    diary.note(Kind.BEGIN, number)
    time.sleep(seconds)
    diary.note(Kind.END, number)


def _die_once(number: int) -> None:
    """Kill the process that runs the task when it is run for the first time."""
    diary.note(Kind.BEGIN, number)
    if diary.numbers(Kind.BEGIN).count(number) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    diary.note(Kind.END, number)


def _with(number: int, text: str) -> int:
    """Note the task; its argument may be large."""
    diary.note(Kind.BEGIN, number)
    return len(text)


begin: Final[Any] = app.task(name="begin")(_begin)
work: Final[Any] = app.task(name="work")(_work)
die_once: Final[Any] = app.task(name="die_once")(_die_once)
with_text: Final[Any] = app.task(name="with_text")(_with)


def _ready(**_: Any) -> None:
    diary.note(Kind.READY)


signals.worker_ready.connect(_ready)
