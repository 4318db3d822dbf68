"""Code that the server commands share: configuration keys, signals, services, ready line."""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import click

from cometmq import descriptors
from cometmq.apache_keys import BROKER, NAMESERVER, apache_keys
from cometmq.cli.failures import INTERRUPTED, WrongUseError
from cometmq.cli.output import json_text, visible
from cometmq.errors import CometMQError
from cometmq.loop import fastest_loop
from cometmq.options import ConfigError, format_value, nearest, options_of, spellings_of
from cometmq.quantity import size_text

R = TypeVar("R")

DEFAULT_NAMESRV_PORT: Final = 9876
DEFAULT_PORT: Final = 10911
OLD_DATA: Final = Path("cometmq-data")
"""Directory of stores of earlier versions, in the current directory; used on where it exists."""
DEFAULT_NAMESRV: Final = f"127.0.0.1:{DEFAULT_NAMESRV_PORT}"
PORTS_PER_BROKER: Final = 10
"""Distance between the ports of two brokers of one `serve`; each broker also uses port - 2 and port + 1."""
NAMESRV_VARIABLE: Final = "NAMESRV_ADDR"
"""Environment variable with the nameserver's address; Apache's clients read the same one."""

_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def default_data() -> Path:
    """Return the directory for stores: the user's data directory, unless there are stores in the current one."""
    if OLD_DATA.is_dir():
        return OLD_DATA.absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "cometmq"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "cometmq"


def tell_data(data: Path) -> None:
    """Tell where a server stores its data, and how much of the disk that takes now."""
    taken = 0
    for file in data.rglob("*"):
        with suppress(OSError):  # a server that runs there deletes files
            taken += file.stat().st_blocks * 512
    say(f"Data in {visible(str(data))}: {size_text(taken)} on the disk.\n")


data_option = click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=default_data,
    show_default="./cometmq-data if it exists, else a directory of the user's data",
    help="Directory for stores and tables.",
)
"""The ``--data`` of commands that look after a store of this machine."""


class Stopping:
    """The request to stop: the first SIGINT or SIGTERM makes it, the second ends the process at once."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.reason = ""

    def install(self) -> None:
        """Listen for the signals on the running loop."""
        loop = asyncio.get_running_loop()
        for number in _STOP_SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)

    def request(self, reason: str) -> None:
        """Ask the process to stop, as a signal would."""
        self.reason = self.reason or reason
        self._event.set()

    async def wait(self) -> None:
        """Wait until the process is asked to stop."""
        await self._event.wait()

    @property
    def requested(self) -> bool:
        """True once the process is asked to stop."""
        return self._event.is_set()

    def _on_signal(self, number: int) -> None:
        if self._event.is_set():
            os._exit(INTERRUPTED)
        self.request(signal.Signals(number).name)


def run_server(main: Callable[[Stopping], Awaitable[None]]) -> None:
    """Run `main` on uvloop where it is installed, otherwise on asyncio's loop."""
    if not logging.getLogger().handlers:
        log_to_stderr()
    descriptors.raise_limit()

    async def guarded_main() -> None:
        stopping = Stopping()
        stopping.install()
        await main(stopping)

    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        runner.run(guarded_main())


def log_to_stderr(level: str = "WARNING", form: str = "text") -> None:
    """Write log lines of this level and above to stderr, a line each: as text or as JSON objects."""
    handler = logging.StreamHandler()
    text = LogLine("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonLine() if form == "json" else text)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("cometmq").setLevel(level)


def log_options(command: Callable[..., R]) -> Callable[..., R]:
    """Add ``--log-level`` and ``--log-format``; what they name is in force when the command begins."""

    @functools.wraps(command)
    def with_logs(*, log_level: str, log_format: str, **others: Any) -> R:
        log_to_stderr(log_level.upper(), log_format)
        return command(**others)

    for option in (
        click.option(
            "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Log lines."
        ),
        click.option(
            "--log-level",
            type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
            default="warning",
            show_default=True,
            help="Least level of log lines.",
        ),
    ):
        with_logs = option(with_logs)
    return with_logs


class JsonLine(logging.Formatter):
    """A log line as a JSON object: time, level, logger, message and, after a failure, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json_text(line)


class LogLine(logging.Formatter):
    """A log line whose parts from outside cannot forge another line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The line itself."""
        return visible(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        """The traceback below it."""
        return visible(super().formatException(ei), lines=True)


def announce(line: str) -> None:
    """Print the ready line of a server; supervisors and scripts wait for it."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def warn(line: str) -> None:
    """Print a warning to stderr."""
    say(f"cometmq: warning: {visible(line)}\n")


def say(text: str) -> None:
    """Write to stderr; a full disk or a closed pipe stops no server."""
    with suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


class Service(Protocol):
    """A nameserver or a broker."""

    async def start(self) -> None:
        """Listen and serve."""

    async def stop(self) -> None:
        """Stop cleanly."""


class PortInUseError(CometMQError):
    """Another program listens on the port of a service."""


@asynccontextmanager
async def stopped_at_the_end(service: Service, *, what: str, port: int, option: str = "-p") -> AsyncIterator[None]:
    """Start a service and stop it at the end of the block.

    :raises PortInUseError: its port is taken; the message names the option that changes it.
    """
    try:
        await service.start()
    except OSError as error:
        await service.stop()
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(
                f"port {port} for the {what} is in use",
                next_step=f"stop the program that listens there, which ss -ltnp | grep {port} names, "
                f"or choose another port with {option}",
            ) from None
        raise
    try:
        yield
    finally:
        await service.stop()


set_option = click.option(
    "-o", "--option", "settings", multiple=True, metavar="KEY=VALUE", help="Set a key of the configuration; repeatable."
)
"""The ``-o`` of the server commands."""


def parse_overrides(config_type: type, settings: tuple[str, ...]) -> dict[str, Any]:
    """Parse ``key=value`` texts into attribute values of a configuration dataclass.

    :raises WrongUseError: a key is unknown or a value is outside its range.
    """
    known = spellings_of(config_type)
    values: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise WrongUseError(f"-o {setting}: write it as key=value")
        found = known.get(key.strip())
        if found is None and key.strip() in apache_keys(BROKER + NAMESERVER):
            raise WrongUseError(f"-o {setting}: that key of Apache's has no effect here; leave it out")
        if found is None:
            near = nearest(key, known)
            hint = f"did you mean {near}?" if near else "--help-config lists all keys"
            raise WrongUseError(f"-o {setting}: there is no key {key} ({hint})")
        try:
            values[found.name] = found.parse(text)
        except ConfigError as error:
            raise WrongUseError(f"-o {error.message}") from None
    return values


def show_config_keys(config_type: type) -> None:
    """Print every key with meaning, unit, allowed values and default, as a configuration file."""
    for found in options_of(config_type).values():
        live = " May change while the process runs." if found.runtime else ""
        click.echo(f"# {found.doc}")
        click.echo(f"# Allowed: {found.range_text}.{live}")
        click.echo(f"{found.key}={'' if found.secret else format_value(found.default)}\n")
