"""A driver in a process of its own that works by the JVM of the tests' session, where everything is warm.

``python -m tests.spark.attached MODULE WORDS``, with the address of the JVM in the environment. A JVM of its own would
take nine tenths of what a driver works in a test.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from cometmq.spark.session import environment


def _context_there(self: SparkContext, conf: Any) -> Any:
    assert self._jvm is not None
    return self._jvm.JavaSparkContext(self._jvm.org.apache.spark.SparkContext.getOrCreate(conf))


def _session(conf: SparkConf) -> SparkSession:
    """A session of its own, whose workers have the credentials that a JVM of its own would hand on."""
    context = SparkContext.getOrCreate(conf)
    context.environment.update({name: of for name, of in os.environ.items() if name.startswith("AWS_")})
    assert context._jvm is not None
    there = context._jvm.org.apache.spark.sql.classic.SparkSession.getDefaultSession().get()
    return SparkSession(context, there.newSession())


def main(module: str, *words: str) -> None:
    """Run a module's driver."""
    SparkContext._initialize_context = _context_there  # type: ignore[method-assign, assignment]
    SparkSession.stop = lambda _: None  # type: ignore[method-assign, assignment]
    environment._session = _session
    importlib.import_module(module).main(*words)


if __name__ == "__main__":
    main(*sys.argv[1:])
