"""Celery's tasks on CometMQ: a worker, a task, one that the broker holds until its time, and one that is revoked.

python examples/celery_tasks.py [NAMESRV]
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from celery import Celery
from celery.exceptions import TaskRevokedError

import cometmq.integrations.kombu  # noqa: F401  # makes the URL cometmq:// known

app = Celery("celery_tasks", broker=f"cometmq://{os.environ.get('NAMESRV', 'localhost:9876')}", backend="rpc://")


@app.task(name="add")
def add(x: int, y: int) -> int:
    """Return the sum."""
    return x + y


@app.task(name="now")
def now() -> float:
    """Return the time."""
    return time.time()


def send_tasks() -> None:
    """Send three tasks, and print what becomes of them."""
    print(f"1 + 2 = {add.delay(1, 2).get(timeout=120)}")
    due = time.time() + 1
    late = now.apply_async(countdown=1).get(timeout=120) - due
    print(f"held by the broker until its time: {'yes' if late >= 0 else late}")
    reminder = add.apply_async((1, 2), countdown=365 * 86_400)
    reminder.revoke()
    try:
        reminder.get(timeout=120)
    except TaskRevokedError:
        print("the reminder for next year is revoked")


def main(namesrv: str) -> None:
    """Send tasks while a worker runs: ``celery -A celery_tasks worker``."""
    app.conf.broker_url = f"cometmq://{namesrv}"
    command = [sys.executable, "-m", "celery", "-A", "celery_tasks", "worker", "-c", "1"]
    with subprocess.Popen(
        command, cwd=Path(__file__).parent, env=dict(os.environ, NAMESRV=namesrv), stderr=subprocess.DEVNULL
    ) as worker:
        try:
            send_tasks()
        finally:
            worker.terminate()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost:9876")
