"""Sends tasks of the proofs, one at a time, and prints what that took as a line of JSON.

    python -m tests.interop.celery.producer --count 1000 [--first 0] [--work SECONDS] [--due SECONDS --over SECONDS]

`--due 10 --over 20` gives each task a time (``eta``): the first is due in 10 seconds, the last 20 seconds later.
`--until FILE` sends until this file exists; `--pace N` sends N tasks a second.
"""

from __future__ import annotations

import argparse
import json
import time
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from tests.interop.celery.diary import Kind
from tests.interop.celery.tasks import app, begin, diary, work


def send(number: int, given: argparse.Namespace, began: float) -> None:
    """Send one task; it is noted before, and after the broker has acknowledged it."""
    options: dict[str, Any] = {}
    if given.due is not None:
        at = began + given.due + given.over * (number - given.first) / given.count
        options["eta"] = datetime.fromtimestamp(at, UTC)
    if given.noted:
        diary.note(Kind.SENDS, number)
    if given.work is None:
        begin.apply_async((number,), **options)
    else:
        work.apply_async((number, given.work), **options)
    if given.noted:
        diary.note(Kind.SENT, number)


def waiting() -> int:
    """The number of messages in the default queue."""
    with app.connection_for_read() as connection:
        queue = app.amqp.queues[app.conf.task_default_queue](connection.default_channel)
        try:
            return int(queue.queue_declare(passive=True).message_count)
        except connection.channel_errors:  # an empty queue does not exist in Redis
            return 0


def main() -> None:
    """Send them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--work", type=float)
    parser.add_argument("--due", type=float)
    parser.add_argument("--over", type=float, default=0.0)
    parser.add_argument("--noted", action="store_true", help="note each task in the diary")
    parser.add_argument("--until", type=Path)
    parser.add_argument("--pace", type=float)
    parser.add_argument("--waiting", action="store_true", help="send nothing, and print how many tasks wait")
    given = parser.parse_args()
    if given.waiting:
        print(waiting())
        return
    with app.producer_or_acquire() as producer:
        producer.connection.ensure_connection(max_retries=20, interval_step=0.1)
    began, cpu, sent = time.time(), time.process_time(), 0
    for number in count(given.first):
        if given.until.exists() if given.until else sent == given.count:
            break
        if given.pace:
            time.sleep(max(0.0, began + sent / given.pace - time.time()))
        send(number, given, began)
        sent += 1
    seconds = time.time() - began
    print(json.dumps({"sent": sent, "seconds": seconds, "cpu_s": time.process_time() - cpu, "began": began}))


if __name__ == "__main__":
    main()
