"""Connects commands to a cluster: the ``-n`` option, a short-lived :class:`Admin`, and name checks."""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from cometmq.cli.contexts import CONTEXT_VARIABLE, NAMESRV_VARIABLE, context_names, use_context
from cometmq.cli.dry_run import READING_ONLY, is_dry_run
from cometmq.cli.failures import PARTLY, WrongUseError
from cometmq.cli.output import DEFAULT_FORM, notify
from cometmq.client.admin import TIMEOUT_S, Admin
from cometmq.client.errors import BrokerError, RemotingConnectError, RemotingError
from cometmq.client.instance import ClientInstance
from cometmq.client.route import DEFAULT_NAMESRV, namesrv_addresses
from cometmq.errors import CometMQError
from cometmq.message.names import check_group, check_topic
from cometmq.message.queue_names import topic_meant
from cometmq.remoting.codes import ResponseCode

T = TypeVar("T")

_TIMEOUT: Final = "cometmq.timeout"


def _checked_addresses(_ctx: click.Context, _parameter: click.Parameter, value: str) -> str:
    try:
        namesrv_addresses(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return value


class _ContextName(click.ParamType[str]):
    """Click type for a context's name, which shells can complete."""

    name = "text"

    def shell_complete(self, _ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in context_names() if name.startswith(incomplete)]


def _use_context(ctx: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    connection = use_context(value or ctx.find_root().params.get("context"))
    if connection is not None:
        ctx.meta[DEFAULT_FORM] = connection.output


CONTEXT: Final = _ContextName()
CONTEXT_OPTION: Final[dict[str, Any]] = {
    "type": CONTEXT,
    "is_eager": True,
    "expose_value": False,
    "callback": _use_context,
    "help": f"Context to use (see cometmq context); also read from ${CONTEXT_VARIABLE}.",
}
"""Arguments for the ``--context`` option."""
context_option = click.option("--context", **CONTEXT_OPTION)
"""The ``--context`` option of all commands that connect. It sets environment variables, which options parsed later can
read.
"""
NAMESRV_OPTION: Final[dict[str, Any]] = {
    "envvar": NAMESRV_VARIABLE,
    "default": DEFAULT_NAMESRV,
    "show_default": True,
    "metavar": "HOST:PORT[;…]",
    "callback": _checked_addresses,
    "help": f"Nameserver addresses; also read from ${NAMESRV_VARIABLE} or a context.",
}
"""Arguments for the ``-n`` option."""


def namesrv_alone(command: Callable[..., T]) -> Callable[..., T]:
    """Add ``-n`` and ``--context`` to a command that connects to a running CometMQ or RocketMQ."""
    return context_option(click.option("-n", "--namesrv", **NAMESRV_OPTION)(command))


def namesrv_option(command: Callable[..., T]) -> Callable[..., T]:
    """Add ``-n``, ``--context`` and ``--timeout`` to a command. :func:`timeout_s` returns the timeout."""
    command = namesrv_alone(command)
    return click.option(
        "--timeout",
        type=click.FloatRange(0, min_open=True),
        expose_value=False,
        callback=_keep_timeout,
        metavar="SECONDS",
        help="Seconds to wait for an answer from a server.  [default: 3 to 5]",
    )(command)


def _keep_timeout(ctx: click.Context, _parameter: click.Parameter, value: float | None) -> None:
    ctx.meta[_TIMEOUT] = value


def timeout_s() -> float | None:
    """Return the running command's ``--timeout`` in seconds, or None if it was not given."""
    ctx = click.get_current_context(silent=True)
    given: float | None = None if ctx is None else ctx.meta.get(_TIMEOUT)
    return given


def administer(namesrv: str, work: Callable[[Admin], Awaitable[T]]) -> T:
    """Run a command's work with an :class:`Admin`, and close its connections.

    :raises CometMQError: no nameserver can be reached, or the work fails.
    """
    return _administer(namesrv, work, partly=False)


def survey(namesrv: str, work: Callable[[Admin], Awaitable[T]]) -> T:
    """Run work that only reads. Unlike :func:`administer`, leave out brokers that do not answer, and report them; the
    exit code is then 3.

    :raises CometMQError: no nameserver can be reached, the work fails, or no broker answers.
    """
    return _administer(namesrv, work, partly=True)


def _administer(namesrv: str, work: Callable[[Admin], Awaitable[T]], *, partly: bool) -> T:
    silent: dict[str, RemotingError] = {}

    async def run() -> T:
        instance = ClientInstance(namesrv, hooks=(READING_ONLY,) if is_dry_run() else ())
        async with Admin(instance=instance, timeout_s=timeout_s() or TIMEOUT_S) as admin:
            admin.unanswered = silent if partly else None
            try:
                result = await work(admin)
            except CometMQError as error:
                first = next(iter(silent.values()), error)
                raise first from first.__cause__
            if silent and silent.keys() >= set((await admin.masters()).values()):
                raise next(iter(silent.values()))
            return result

    try:
        result = asyncio.run(run())
    except RemotingConnectError as error:
        raise explain_connect_error(error, namesrv) from error
    for silence in silent.values():
        notify(f"cometmq: left out: {silence.message}")
    if silent:
        click.get_current_context().meta[PARTLY] = True
    return result


def explain_connect_error(error: RemotingConnectError, namesrv: str) -> CometMQError:
    """Return a clearer error if no nameserver listens there. Other causes, such as a name or TLS, stay as they are."""
    if isinstance(error.cause, ssl.SSLError | socket.gaierror):
        return error
    if error.address in namesrv_addresses(namesrv):
        return CometMQError(
            f"no nameserver at {namesrv}", next_step="start one with cometmq serve, or set another with -n HOST:PORT"
        )
    return error


async def ask_cometmq_broker(name: str, asking: Awaitable[T], what: str, next_step: str) -> T:
    """Await a request that only CometMQ brokers support.

    :param what: the action, named in the error message.
    :raises CometMQError: the broker is not a CometMQ broker.
    """
    try:
        return await asking
    except BrokerError as error:
        if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise CometMQError(f"broker {name} cannot {what}", next_step=next_step) from error
        raise


def demand_topic_name(topic: str) -> None:
    """Check that a topic name is valid.

    :raises WrongUseError: the name is not allowed.
    """
    wrong = check_topic(topic)
    if wrong is not None:
        of_queue = topic_meant(topic)
        hint = "" if of_queue is None else f" (the topic of a queue with this name is {of_queue})"
        raise WrongUseError(f"{topic!r} is not a valid topic name: {wrong}{hint}")


def demand_group_name(group: str) -> None:
    """Check that a group name is valid.

    :raises WrongUseError: the name is not allowed.
    """
    wrong = check_group(group)
    if wrong is not None:
        raise WrongUseError(f"{group!r} is not a valid group name: {wrong}")


def confirm_deletion(what: str, consequence: str) -> None:
    """Ask the user to confirm a deletion.

    :raises WrongUseError: stdin is not a terminal, so ``--yes`` is required.
    :raises CometMQError: the user did not confirm.
    """
    _confirm(f"deleting {what} {consequence}", "nothing was deleted")


def confirm_change(what: str) -> None:
    """Ask the user to confirm a change that was shown before.

    :raises WrongUseError: stdin is not a terminal, so ``--yes`` is required.
    :raises CometMQError: the user did not confirm.
    """
    _confirm(f"this changes {what}", "nothing was changed")


def _confirm(sentence: str, otherwise: str) -> None:
    if is_dry_run():
        return
    if not sys.stdin.isatty():
        raise WrongUseError(f"{sentence}; {otherwise}", next_step="add --yes to confirm")
    if not click.confirm(f"{sentence[0].upper()}{sentence[1:]}. Continue?", err=True):
        raise CometMQError(otherwise)
