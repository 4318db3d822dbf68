"""Kills workers and brokers under load, for Redis, RabbitMQ and CometMQ as Celery's broker.

    python -m benchmarks.celery.kills [--kills 100] [--only redis rabbitmq cometmq] [--seed 1] [--unseen 5]

What is killed and counted is in ``tests/interop/celery/kills.py``.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.rounds import say, table
from tests.interop.builds import ToolMissingError
from tests.interop.celery.brokers import BROKERS, started
from tests.interop.celery.kills import UNSEEN_S, VICTIMS, Plan, Scene


def main() -> None:
    """Run the kills on each broker."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--only", nargs="+", choices=list(BROKERS), default=["redis", "rabbitmq", "cometmq"])
    parser.add_argument("--victims", nargs="+", choices=VICTIMS, default=list(VICTIMS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--unseen", type=float, default=UNSEEN_S, help="visibility_timeout in seconds")
    parser.add_argument("--keep", type=Path, help="a directory for logs and diaries, without those of an earlier run")
    given = parser.parse_args()
    plan = Plan(given.kills, tuple(given.victims), seed=given.seed, unseen_s=given.unseen)
    columns: dict[str, dict[str, str]] = {}
    for key in given.only:
        with tempfile.TemporaryDirectory(prefix="cometmq-kills-") as name:
            directory = (given.keep or Path(name)) / key
            directory.mkdir(parents=True)  # a diary of an earlier run would be counted too
            try:
                with started(key, Path(name) / "broker") as broker:
                    result = Scene(broker, directory, plan).run()
                    figures = result.figures()
                    say(broker=key, version=broker.version(), kills=given.kills, **figures, ended=result.fallen)
                    shown = {n: f"{v:,}" if isinstance(v, int) else f"{v:.2f}" for n, v in figures.items()}
                    columns[broker.version()] = shown
            except ToolMissingError as problem:
                say(broker=key, missing=str(problem))
    rows = dict.fromkeys(name for figures in columns.values() for name in figures)
    print("\n" + table(["", *columns], *([row, *(c.get(row, "—") for c in columns.values())] for row in rows)))


if __name__ == "__main__":
    main()
