"""A job: a function whose arguments are one frozen class of options, from which its command and its page are made too.

A field is an argument of the job's function; one made by :func:`option` is an option of its command too. A field whose
class has options itself (:func:`options_from`), such as where messages are read, gives the command all of them.
``cometmq.cli.jobs.command`` makes the command, ``scripts/job_tables`` the tables of ``docs/job-options.md``.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Protocol, TypeVar, cast, dataclass_transform, overload

from cometmq.paths import PathError, local_text
from cometmq.spark.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

P = ParamSpec("P")
T = TypeVar("T")
O_contra = TypeVar("O_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)
_METADATA: Final = "option"


class Kind(Enum):
    """The form of an option's argument on the command line, and the value that it becomes."""

    TEXT = auto()
    FLAG = auto()
    COUNT = auto()
    NUMBER = auto()
    SECONDS = auto()
    """Becomes milliseconds."""
    MEBIBYTES = auto()
    """Becomes bytes."""
    MOMENT = auto()
    """ISO 8601 or milliseconds; becomes milliseconds since 1970."""
    DURATION = auto()
    """Such as ``90d``; becomes milliseconds."""
    DIRECTORY = auto()
    OLD_DIRECTORY = auto()
    """It must exist."""
    FILE = auto()
    NAMES = auto()
    """Separated by commas; becomes a tuple."""
    SETTINGS = auto()
    """``NAME=VALUE``, repeated; becomes a mapping."""
    ACCESS = auto()
    """The same with options for credentials and TLS."""
    NAMESRV = auto()


_KINDS: Final[Mapping[type, Kind]] = {bool: Kind.FLAG, int: Kind.COUNT, float: Kind.NUMBER}


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a command."""

    help: str
    flags: tuple[str, ...]
    kind: Kind
    many: bool
    """May be repeated; becomes a tuple."""
    choices: tuple[str, ...]
    least: int | None
    most: int | None
    required: bool


def option(
    text: str,
    *flags: str,
    default: Any = dataclasses.MISSING,
    kind: Kind | None = None,
    many: bool = False,
    choices: tuple[str, ...] = (),
    least: int | None = None,
    most: int | None = None,
    required: bool | None = None,
    secret: bool = False,
) -> Any:
    """Declare a field that is an option of the command too.

    :param text: its meaning, for the help of the command, of the function and for the page.
    :param flags: ``--name`` by default; a word without dashes makes it an argument.
    :param kind: by default that of the default value, or text.
    :param least: smallest number, as ``most`` is the largest; numbers that are not whole must be above it.
    :param required: whether the command demands it; by default if there is no ``default``.
    :param secret: no ``repr`` shows its value.
    """
    found = Option(
        help=text,
        flags=flags,
        kind=kind or _KINDS.get(type(default), Kind.TEXT),
        many=many,
        choices=choices,
        least=least,
        most=most,
        required=default is dataclasses.MISSING if required is None else required,
    )
    return _field(default, found, secret)


def argument(text: str, *, default: Any = dataclasses.MISSING) -> Any:
    """Declare a field that only the function has."""
    return _field(default, text, False)


def options_from(kind: type, text: str, *, default: Any = dataclasses.MISSING) -> Any:
    """Declare a field of a class that has options itself; the command has all of them."""
    return _field(default, (kind, text), False)


def _field(default: Any, metadata: Any, secret: bool) -> Any:
    hashed = None if not secret else False
    values: dict[str, Any] = {"metadata": {_METADATA: metadata}, "repr": not secret, "hash": hashed}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=default.copy, **values)
    return dataclasses.field(default=default, **values)


_PLACES: Final = frozenset((Kind.DIRECTORY, Kind.OLD_DIRECTORY, Kind.FILE))


@dataclass_transform(frozen_default=True, field_specifiers=(option, argument, options_from))
def job_options(of: type[T]) -> type[T]:
    """Make a class with such fields a frozen one; its paths are those of the local file system, also as URLs."""
    of.__post_init__ = _take_local_paths  # type: ignore[attr-defined]
    return dataclass(frozen=True)(of)


def _take_local_paths(options: Any) -> None:
    """Make paths of the ``file:`` URLs among some options.

    :raises OptionError: a path has a scheme that is not served.
    """
    for name, said in fields_of(type(options)):
        value = getattr(options, name)
        if isinstance(said, Option) and said.kind in _PLACES and isinstance(value, str | Path):
            try:
                place = local_text(str(value))
            except PathError as error:
                raise OptionError(f"{name}: {error.message}", next_step=error.next_step) from error
            if place != str(value):
                object.__setattr__(options, name, Path(place))


@job_options
class SparkOptions:
    """The Spark session of a job."""

    _: KW_ONLY
    spark: SparkSession | None = argument(
        "session to use; without one the job makes a session on ``master``, and stops it at its end", default=None
    )
    master: str = option("Spark master, or sc://HOST of Connect.", default="local[*]")


def fields_of(options: type) -> list[tuple[str, Option | tuple[type, str] | str]]:
    """List the fields of a class of options: an option, the class of several, or what an argument means."""
    return [
        (field.name, field.metadata[_METADATA]) for field in dataclasses.fields(options) if _METADATA in field.metadata
    ]


def flags_of(name: str, of: Option) -> tuple[str, ...]:
    """The names of an option on the command line."""
    return of.flags or ("--" + name.replace("_", "-"),)


class Job(Protocol[P, O_contra, R_co]):
    """The function of a job: called with the arguments of its class of options, or with one object of the class."""

    @property
    def options(self) -> type[Any]:
        """The class."""

    @overload
    def __call__(self, options: O_contra, /) -> R_co: ...
    @overload
    def __call__(self, *args: P.args, **named: P.kwargs) -> R_co: ...


def job(options: Callable[P, O_contra]) -> Callable[[Callable[[O_contra], R_co]], Job[P, O_contra, R_co]]:
    """Make the function of a job from a function that takes an object of the job's options."""
    kind = cast("type[Any]", options)

    def decorate(work: Callable[[O_contra], R_co]) -> Job[P, O_contra, R_co]:
        @functools.wraps(work)
        def run(*args: Any, **named: Any) -> R_co:
            given = args[0] if args and isinstance(args[0], kind) and not named else kind(*args, **named)
            return work(given)

        returned = inspect.signature(work).return_annotation
        run.__signature__ = inspect.signature(kind).replace(return_annotation=returned)  # type: ignore[attr-defined]
        run.__doc__ = _documented(work, kind)
        run.options = kind  # type: ignore[attr-defined]
        return cast("Job[P, O_contra, R_co]", run)

    return decorate


def _documented(work: Callable[..., Any], options: type) -> str:
    """The docstring of a job's function, with its parameters."""
    text = inspect.getdoc(work) or ""
    before, raises, errors = text.partition(":raises")
    lines = []
    for name, said in fields_of(options):
        meaning = said if isinstance(said, str) else said.help if isinstance(said, Option) else said[1]
        lines.append(f":param {name}: {meaning[0].lower()}{meaning[1:].rstrip('.')}.")
    return "\n".join([before.rstrip(), "", *lines, raises + errors])
