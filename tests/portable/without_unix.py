"""A program for Python that imports what Windows has: it stands for Windows on other systems.

It hides modules and functions of Unix, then loads every module of the rooms that promise to work everywhere, and sends
and consumes a message. ``python without_unix.py NAMESRV TOPIC`` prints the body that it consumed.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import importlib
import logging.handlers
import os
import pkgutil
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import types
from typing import Any

import click
import msgspec
import rich.console
import rich.live
import rich.progress

LOADED = (argparse, asyncio, http.client, logging.handlers, shutil, socket, ssl, subprocess, click, msgspec, rich)
"""Modules of others that look at the system when they are loaded: they come before it is hidden."""
MODULES = ("fcntl", "termios", "tty", "resource", "pwd", "grp", "uvloop")
FUNCTIONS = ("fork", "register_at_fork", "getuid", "geteuid", "statvfs", "killpg", "preadv", "pwritev", "fdatasync")
CONSTANTS = ("O_DIRECTORY", "O_CLOEXEC", "O_NOFOLLOW")
SIGNALS = ("SIGHUP", "SIGKILL", "SIGUSR1", "SIGQUIT")
ROOMS = ("client", "remoting", "message", "cli")
SERVERS = ("cometmq.cli.servers", "cometmq.cli.jobs")
"""Commands that load a server or Spark."""


def hide_unix() -> None:
    """Take away what Windows does not have."""
    for module in MODULES:
        sys.modules[module] = None  # type: ignore[assignment]
    for name in FUNCTIONS + CONSTANTS:
        if hasattr(os, name):
            delattr(os, name)
    for name in SIGNALS:
        if hasattr(signal, name):
            delattr(signal, name)
    locking: Any = types.ModuleType("msvcrt")
    locking.LK_LOCK, locking.locking = 1, lambda *_: None
    sys.modules.setdefault("msvcrt", locking)
    sys.platform = "win32"


def load_rooms() -> int:
    """Load every module; return their number."""
    count = 0
    for room in ROOMS:
        package = importlib.import_module(f"cometmq.{room}")
        for found in pkgutil.walk_packages(package.__path__, f"cometmq.{room}."):
            if not found.name.startswith(SERVERS):
                importlib.import_module(found.name)
                count += 1
    return count


async def send_and_consume(namesrv: str, topic: str) -> bytes:
    """Send a message and consume it."""
    from cometmq.client import LitePullConsumer, Message, Producer

    async with Producer("portable", namesrv) as producer:
        sent = await producer.send(Message(topic, b"from everywhere"))
    async with LitePullConsumer("portable", namesrv) as consumer:
        await consumer.assign([sent.queue])
        await consumer.seek(sent.queue, sent.queue_offset)
        (message,) = await consumer.poll()
    return message.body


if __name__ == "__main__":
    if sys.platform != "win32":
        hide_unix()
    assert load_rooms() > 100
    if sys.argv[1:]:
        # Python 3.14 chooses a loop only now, by the name of the platform
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            print(runner.run(send_and_consume(*sys.argv[1:])).decode())
