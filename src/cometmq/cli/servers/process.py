"""Shared code of the server commands: configuration keys, signals, services and the ready line."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol

import click

from cometmq import descriptors
from cometmq.apache_keys import BROKER, NAMESERVER, apache_keys
from cometmq.cli.failures import INTERRUPTED, WrongUseError
from cometmq.cli.local_path import LocalPath
from cometmq.cli.output import say
from cometmq.cli.servers.logs import reopen_logs, start_log
from cometmq.cli.servers.memory import use_one_heap
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.errors import CometMQError
from cometmq.loop import fastest_loop
from cometmq.options import ConfigError, format_value, nearest, options_of, parse_value, spellings_of
from cometmq.properties_file import format_pairs
from cometmq.quantity import size_text
from cometmq.visible import visible

_log = logging.getLogger(__name__)

OLD_DATA: Final = Path("cometmq-data")
"""Store directory in the current directory that earlier versions used. It is still used if it exists."""

_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_SAME_REQUEST_SECONDS: Final = 0.5
"""Number of seconds after a signal during which further signals are ignored. For example, timeout(1) sends two signals.
"""


def default_data() -> Path:
    """Return the directory for stores: the user's data directory, unless the current directory contains stores."""
    if OLD_DATA.is_dir():
        return OLD_DATA.absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "cometmq"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "cometmq"


def tell_data(data: Path) -> None:
    """Print the directory in which a server stores its data, and the disk space in use."""
    taken = 0
    for file in data.rglob("*"):
        with suppress(OSError):  # a server that runs there may delete files in the meantime
            taken += file.stat().st_blocks * 512
    say(f"Data in {visible(str(data))}: {size_text(taken)} on the disk.\n")


data_option = click.option(
    "--data",
    type=LocalPath(path_type=Path, file_okay=False),
    default=default_data,
    show_default="./cometmq-data if it exists, else the user's data directory",
    help="Directory for stores and tables.",
)
"""The ``--data`` option of commands that use a store on this machine."""


class Stopping:
    """The request to stop the process. The first SIGINT or SIGTERM sets it, and the second ends the process
    immediately.

    On SIGHUP, a server recreates its log files and keeps running, unless the terminal that started it was closed.
    """

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._event = asyncio.Event()
        self._has_terminal = _has_terminal()
        self._signalled_at: float | None = None
        self.reason = ""

    def install(self, *, is_server: bool = False) -> None:
        """Install the signal handlers on the running event loop."""
        loop = asyncio.get_running_loop()
        for number in _STOP_SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        if is_server and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup ignores this signal
            loop.add_signal_handler(signal.SIGHUP, self._on_hangup)

    def request(self, reason: str) -> None:
        """Ask the process to stop, as a signal would."""
        self.reason = self.reason or reason
        _log.info("stopping: %s", self.reason)
        self._event.set()

    async def wait(self) -> None:
        """Wait until the process is asked to stop."""
        await self._event.wait()

    @property
    def requested(self) -> bool:
        """True once the process was asked to stop."""
        return self._event.is_set()

    def _on_signal(self, number: int) -> None:
        now = self._clock.monotonic()
        if self._signalled_at is None:
            self._signalled_at = now
            self.request(signal.Signals(number).name)
        elif now - self._signalled_at >= _SAME_REQUEST_SECONDS:
            os._exit(INTERRUPTED)

    def _on_hangup(self) -> None:
        if self._has_terminal and not _has_terminal():
            self.request("the terminal is gone")
            return
        reopen_logs()
        _log.info("SIGHUP: reopening renamed log files")


def _has_terminal() -> bool:
    return any(map(os.isatty, range(3)))


def run_server(main: Callable[[Stopping], Awaitable[None]], *, is_server: bool = True) -> None:
    """Run `main` on uvloop if it is installed, otherwise on asyncio's loop.

    :param is_server: True to keep running after SIGHUP; other processes end.
    """
    if not logging.getLogger().handlers:
        start_log()
    descriptors.raise_limit()
    use_one_heap()

    async def guarded_main() -> None:
        stopping = Stopping()
        stopping.install(is_server=is_server)
        await main(stopping)

    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        runner.run(guarded_main())


def announce(line: str) -> None:
    """Print a server's ready line. Supervisors and scripts wait for this line."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def warn(line: str) -> None:
    """Print a warning to stderr."""
    say(f"cometmq: warning: {visible(line)}\n")


until_stdin_ends_option = click.option(
    "--until-stdin-ends", is_flag=True, hidden=True, help="Stop when stdin is closed, because the supervisor has ended."
)
"""The hidden option for servers that `serve` supervises."""

begin_anew_option = click.option(
    "--begin-anew",
    is_flag=True,
    help="Start even if the commit log is missing, without the messages in the queues.",
)
"""The option for commands that start brokers."""


def stop_when_stdin_ends(stopping: Stopping) -> None:
    """Ask this process to stop when its stdin is closed, which means that its parent process has ended."""
    loop = asyncio.get_running_loop()

    def on_readable() -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            loop.remove_reader(sys.stdin.fileno())
            stopping.request("stdin ended")

    loop.add_reader(sys.stdin.fileno(), on_readable)


class Service(Protocol):
    """A service that can be started and stopped: a nameserver or a broker."""

    async def start(self) -> None:
        """Start listening and serving requests."""

    async def stop(self) -> None:
        """Stop cleanly."""


class PortInUseError(CometMQError):
    """A service's port is in use by another program."""


@asynccontextmanager
async def run_service(service: Service, *, what: str, port: int, option: str = "-p") -> AsyncIterator[None]:
    """Start a service, and stop it at the end of the block.

    :raises PortInUseError: the port is in use; the message names the option for another port.
    """
    try:
        await service.start()
    except OSError as error:
        await service.stop()
        if error.errno == errno.EADDRINUSE and f":{port}:" in str(error):
            raise PortInUseError(
                f"port {port} for the {what} is in use",
                next_step=f"stop the program that listens there (find it with ss -ltnp | grep {port}), "
                f"or choose another port with {option}",
            ) from None
        raise
    try:
        yield
    finally:
        await service.stop()


set_option = click.option(
    "-o", "--option", "settings", multiple=True, metavar="KEY=VALUE", help="Set a configuration key. May be repeated."
)
"""The ``-o`` option of the server commands."""


advertise_option = click.option(
    "--advertise",
    multiple=True,
    metavar="[LISTENER=]HOST[:PORT]",
    help="Address to which clients of one or all listeners connect (advertisedListeners). May be repeated.",
)
"""The ``--advertise`` option of commands that run brokers."""
listener_option = click.option(
    "--listener",
    "listeners",
    multiple=True,
    metavar="NAME=PORT|NETWORK",
    help="Additional nameserver port, or client network, for which this listener's addresses are used. May be "
    "repeated.",
)
"""The ``--listener`` option of commands that run a nameserver, which sets ``listeners``."""


def parse_overrides(config_type: type, settings: tuple[str, ...]) -> dict[str, Any]:
    """Parse ``key=value`` texts as attribute values for a configuration dataclass.

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
            raise WrongUseError(f"-o {setting}: this key has no effect in CometMQ; leave it out")
        if found is None:
            near = nearest(key, known)
            hint = f"did you mean {near}?" if near else "--help-config lists all keys"
            raise WrongUseError(f"-o {setting}: unknown key {key} ({hint})")
        try:
            values[found.name] = parse_value(found, text)
        except ConfigError as error:
            raise WrongUseError(f"-o {error.message}") from None
    return values


def show_config_keys(config_type: type) -> None:
    """Print every key with its meaning, unit, allowed values and default as a configuration file."""
    for found in options_of(config_type).values():
        live = " Can be changed while the process runs." if found.runtime else ""
        click.echo(f"# {found.doc}")
        click.echo(f"# Allowed: {found.form.words}.{live}")
        click.echo(format_pairs({found.key: "" if found.secret else format_value(found.default)}))
