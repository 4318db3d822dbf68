"""The base class of CometMQ's errors, and the check that packages are installed."""

from __future__ import annotations

import os
import pickle
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

SERVER: Final = "server"
SPARK: Final = "spark"
TESTING: Final = "testing"
"""The optional extras of this package, by name."""
SPARK_MODULES: Final = ("pyspark", "pyarrow", "pandas", "numpy")


def reason_of(error: OSError) -> str:
    """Return the operating system's text for a failure, without numbers: for example ``connection refused``."""
    if error.errno is None or error.errno < 0:  # below 0: name resolution failed; the error has the text
        return error.strerror or str(error)
    return os.strerror(error.errno).lower()


class CometMQError(Exception):
    """The base class of all errors that CometMQ raises on purpose.

    ``message`` is one sentence about the failure. ``next_step``, if set, says what the reader can do.
    """

    def __init__(self, message: str, *, next_step: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle or copy the error with all its fields and its cause.

        By default, Python would call the class with only the message, which most of these classes do not accept.
        """
        state = dict(self.__dict__)
        if self.__cause__ is not None:
            state["__cause__"] = _portable(self.__cause__)
        return _again, (type(self), self.args), state

    def __str__(self) -> str:
        """Return the message, followed by the next step."""
        if self.next_step is None or self.next_step in self.message:  # a server may have included it already
            return self.message
        return f"{self.message} ({self.next_step})"


def _again(kind: type[CometMQError], arguments: tuple[Any, ...]) -> CometMQError:
    return kind.__new__(kind, *arguments)


def _portable(cause: BaseException) -> BaseException:
    """Return the cause, or an error with the same text if its class is an application's and cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(cause))
    except Exception:
        return CometMQError(f"{type(cause).__name__}: {cause}")
    return cause


class MissingPackageError(CometMQError, ModuleNotFoundError):
    """A required package is not installed; the next step says how to install it."""


def pip_install(extra: str) -> str:
    """Return the command that installs an extra. In a clone, a package of an index would replace the clone's own."""
    package = Path(__file__).parent
    clone = package.parent.parent
    if package.parent.name == "src" and (clone / "pyproject.toml").is_file():
        return f"pip install -e '{clone}[{extra}]'"
    return f"pip install 'cometmq[{extra}]'"


def require(part: str, extra: str, *modules: str) -> None:
    """Check that modules of an extra are installed, without importing them.

    :param part: the subject of the error's sentence, for example a command.
    :raises MissingPackageError: a module is not installed.
    """
    for module in modules:
        if not _is_installed(module):
            raise missing_package(part, module, pip_install(extra))


def missing_package(part: str, module: str, how: str) -> MissingPackageError:
    """Return the error for a part that needs a module; ``how`` is the command that installs it."""
    error = MissingPackageError(f"{part} needs {module}, which is not installed", next_step=how)
    error.name = module
    return error


def _is_installed(module: str) -> bool:
    if sys.modules.get(module) is not None:  # it may have no spec, like kombu
        return True
    with suppress(ModuleNotFoundError):  # the package that contains the module may be missing
        return find_spec(module) is not None
    return False
