"""The tasks that the workers of the tests have."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery
from celery.exceptions import Reject

import cometmq.integrations.kombu  # noqa: F401

app = Celery("tasks", broker=os.environ.get("BROKER"), backend="rpc://")
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options={"wait_time": 2, "max_deliveries": 3},
    result_expires=600,
    task_default_queue=os.environ.get("QUEUE", "celery"),
    worker_prefetch_multiplier=1,
)


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task
def now() -> float:
    return time.time()


@app.task(bind=True, max_retries=5)
def again(self: Any, times: int) -> int:
    if self.request.retries < times:
        raise self.retry(countdown=0.05)
    return int(self.request.retries)


@app.task(bind=True, acks_late=True)
def until_file(self: Any, path: str) -> bool:
    """Say that it has begun, and wait for the file; return whether it was delivered before."""
    Path(f"{path}.begun").write_text(str(os.getppid()))
    while not Path(path).exists():
        time.sleep(0.01)
    return bool(self.request.delivery_info["redelivered"])


@app.task(bind=True, acks_late=True)
def not_at_once(self: Any) -> None:
    """Succeed when delivered again."""
    if not self.request.delivery_info["redelivered"]:
        raise Reject(requeue=True)


@app.task(bind=True, acks_late=True, reject_on_worker_lost=True)
def poison(self: Any) -> None:
    os._exit(1)
