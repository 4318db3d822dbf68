"""Converts a command's failure to a sentence with the next step, and to an exit code."""

from __future__ import annotations

import errno
import io
import os
import socket
import sys
from collections.abc import Callable
from typing import Final

import click

from cometmq.errors import CometMQError
from cometmq.visible import visible

DONE: Final = 0
FAILED: Final = 1
WRONG_USE: Final = 2
PARTLY_DONE: Final = 3
INTERRUPTED: Final = 130
"""128 + SIGINT, the exit code that shells expect from an interrupted command."""


PARTLY: Final = "cometmq.partly"
"""Key in click's ``context.meta`` that is set if a command shows only part of its result. The exit code is then 3.
"""


class ReaderGoneError(Exception):
    """The process that reads stdout has ended, such as ``head`` in ``cometmq consume … | head``. This is not
    a failure.
    """


class PartlyDoneError(CometMQError):
    """Only part of the work was done. The error states how much."""


class WrongUseError(CometMQError):
    """The options contradict each other, which click cannot detect while it parses them."""


def guarded(run: Callable[[], object]) -> int:
    """Run a command and return its exit code. Failures are written to stderr as a sentence, without a traceback.

    If the environment contains ``COMETMQ_TRACEBACK=1``, the exception is raised instead, for bug reports.
    """
    try:
        result = run()
        sys.stdout.flush()
        return result if isinstance(result, int) else DONE
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.UsageError as error:
        text = io.StringIO()
        error.show(text)
        click.echo(visible(text.getvalue(), lines=True), nl=False, err=True)
        return WRONG_USE
    except click.ClickException as error:
        return _print_failure(error.format_message(), FAILED)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except (ReaderGoneError, BrokenPipeError):
        _drop_stdout()
        return DONE
    except PartlyDoneError as error:
        return _print_failure(str(error), PARTLY_DONE)
    except WrongUseError as error:
        return _print_failure(str(error), WRONG_USE)
    except CometMQError as error:
        return _print_failure(str(error), FAILED)
    except OSError as error:
        return _print_failure(explain_os_error(error), FAILED)
    except Exception as error:
        if os.environ.get("COMETMQ_TRACEBACK"):
            raise
        return _print_failure(
            f"unexpected {type(error).__name__}: {error} (this is a bug; run again with COMETMQ_TRACEBACK=1 "
            "and report what it prints)",
            FAILED,
        )


def explain_os_error(error: OSError) -> str:
    """Describe an operating system error in a sentence with the next step."""
    text = error.strerror or str(error)
    if isinstance(error, socket.gaierror):
        return f"{text} (check the name and its DNS, or use an IP address)"
    text = text.lower()
    where = f"{error.filename}: " if error.filename else ""
    match error.errno:
        case errno.EADDRINUSE:
            return f"{where}{text} (stop what listens there, or choose another port with --port or --namesrv-port)"
        case errno.EADDRNOTAVAIL:
            return f"{where}{text} (this machine has no such address; 0.0.0.0 listens on all that it has)"
        case errno.EACCES | errno.EPERM:
            return f"{where}{text} (use a directory and ports that this user may use)"
        case errno.ENOTDIR:
            return f"{where}{text} (a file is in the path; choose another directory)"
        case errno.ENOSPC:
            return f"{where}{text} (free some space, or use another disk)"
        case errno.EMFILE | errno.ENFILE:
            return f"{where}{text} (raise the limit with: ulimit -n 65536)"
        case errno.ECONNREFUSED:
            return f"{where}{text} (is the server running? start one with: cometmq serve)"
    return f"{where}{text} (cometmq doctor may know more)"


def _print_failure(sentence: str, code: int) -> int:
    click.echo(f"cometmq: {visible(sentence, lines=True)}", err=True)
    return code


def _drop_stdout() -> None:
    """Redirect stdout to /dev/null, so that the final flush at exit does not fail with a broken pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
