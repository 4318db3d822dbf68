"""Defines jobs: a job is a function whose arguments are described by one frozen options class. The job's command and
page are generated from the same class.

Each field is an argument of the job's function. A field created by :func:`option` is also an option of the job's
command. If a field's class has options itself (:func:`options_from`), for example the message source, the command has
all of these options. ``cometmq.cli.jobs.command`` creates the command, ``scripts/job_tables`` the tables of
``docs/job-options.md``.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Protocol, TypeVar, cast, dataclass_transform, overload

from cometmq.options import Option
from cometmq.options.declared import declare, declared
from cometmq.options.forms import FLAG, PATH, TEXT, Form, OptionError, whole
from cometmq.paths import PathError, local_text, scheme_of
from cometmq.spark.archives.catalogs import is_secret
from cometmq.spark.options import PLACE, SECRET_PLACES, STORAGE, parse_option

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

P = ParamSpec("P")
T = TypeVar("T")
O_contra = TypeVar("O_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


def _key_store_text(text: str) -> str:
    """Return the path of a key store.

    :raises PathError: the text is the URL of an object store.
    """
    if (scheme := scheme_of(text)) not in (None, "file"):
        raise PathError(
            f"a key store is an SQLite database, which cannot be at {scheme}://",
            next_step="use a file on a local disk or on a disk that all machines mount",
        )
    return local_text(text)


def _read_setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError
    for secret, place in SECRET_PLACES.items():
        if name.lower() == secret.lower():
            reason = f"must not hold {secret}: everybody on this machine would see it in the list of processes"
            raise OptionError(reason, next_step=f"give {place}")
    return name, value


def _read_storage_setting(text: str) -> tuple[str, str]:
    return _read_setting(text if text.startswith(STORAGE) else f"{STORAGE}{text}")


def _read_catalog_setting(text: str) -> tuple[str, str]:
    name, value = _read_setting(text)
    if is_secret(name, value):
        reason = f"must not hold {name}: everybody on this machine would see it in the list of processes"
        variable = name.upper().replace(".", "__").replace("-", "_")
        raise OptionError(
            reason, next_step=f"set the variable PYICEBERG_CATALOG__NAME__{variable}, or write it in ~/.pyiceberg.yaml"
        )
    return name, value


DIRECTORY: Final = dataclasses.replace(PATH, words="a directory")
OLD_DIRECTORY: Final = dataclasses.replace(PATH, words="a directory that exists")
FILE: Final = dataclasses.replace(PATH, words="a file")
KEY_STORE: Final = dataclasses.replace(PATH, words="a local file", read=_key_store_text)
NEW_PLACE: Final = dataclasses.replace(PLACE, words="a directory, or a URL")
OLD_PLACE: Final = dataclasses.replace(PLACE, words="a directory that exists, or a URL")
SETTINGS: Final = Form("NAME=VALUE", _read_setting, name="NAME=VALUE", keeps_blanks=True)
"""The option may be repeated, and its value is a mapping. Every user can see a command's arguments, so the option
accepts no secrets.
"""
ACCESS: Final = dataclasses.replace(SETTINGS, words="NAME=VALUE, an option for credentials or TLS")
STORAGE_HELP: Final = "Option of the object store, such as endpoint, region or profile. May be repeated."
STORAGE_SETTINGS: Final = dataclasses.replace(
    SETTINGS, read=_read_storage_setting, words="NAME=VALUE, an option of an object store"
)
CATALOG_SETTINGS: Final = dataclasses.replace(
    SETTINGS, read=_read_catalog_setting, words="NAME=VALUE, a property of an Iceberg catalog"
)
NAMESRV: Final = Form("nameservers", str)


def option(
    doc: str,
    *flags: str,
    default: Any = dataclasses.MISSING,
    form: Form[Any] | None = None,
    key: str = "",
    many: bool = False,
    required: bool | None = None,
    secret: bool = False,
) -> Any:
    """Declare a field that is also an option of the command.

    :param doc: the option's meaning, used in the command's help, in the function's docstring and on the page.
    :param flags: ``--name`` by default. A word without dashes makes the option an argument.
    :param form: type of the value; by default, the type of the default value, or text if there is none.
    :param key: source option that receives the field's value; errors name this option.
    :param required: True if the command requires the option; by default if there is no ``default``.
    """
    if form is None:
        form = FLAG if isinstance(default, bool) else whole() if isinstance(default, int) else TEXT
    needed = default is dataclasses.MISSING if required is None else required
    found = Option(form, doc, key, secret=secret, flags=flags, many=many, required=needed)
    return declare(found, default, secret=secret)


def argument(text: str, *, default: Any = dataclasses.MISSING) -> Any:
    """Declare a field that is only an argument of the function."""
    return declare(text, default)


def options_from(kind: type, text: str, *, default: Any = dataclasses.MISSING) -> Any:
    """Declare a field whose class has options itself. The command has all of these options."""
    return declare((kind, text), default)


@dataclass_transform(frozen_default=True, field_specifiers=(option, argument, options_from))
def job_options(of: type[T]) -> type[T]:
    """Convert a class with job options to a frozen dataclass. Its path options accept local paths and ``file:`` URLs,
    and its place options also URLs of object stores.
    """
    of.__post_init__ = _take_local_paths  # type: ignore[attr-defined]
    return dataclass(frozen=True)(of)


def _take_local_paths(options: Any) -> None:
    """Convert ``file:`` URLs in the given options to paths, and places to texts.

    :raises OptionError: a path has a scheme that is not supported.
    """
    for name, found in declared(type(options)).items():
        value = getattr(options, name)
        if (
            isinstance(found, Option)
            and found.form in (DIRECTORY, OLD_DIRECTORY, FILE, KEY_STORE)
            and isinstance(value, str | Path)
        ):
            place = parse_option(name, found.form, str(value))
            if place != str(value):
                object.__setattr__(options, name, Path(place))
        elif isinstance(found, Option) and found.form in (NEW_PLACE, OLD_PLACE) and isinstance(value, str | Path):
            object.__setattr__(options, name, parse_option(name, found.form, str(value)))


@job_options
class SparkOptions:
    """Open the Spark session for a job."""

    _: KW_ONLY
    spark: SparkSession | None = argument(
        "session to use; by default, the job creates a session on ``master`` and stops it at the end", default=None
    )
    master: str = option("Spark master, or sc://HOST for Spark Connect.", default="local[*]")


def flags_of(found: Option) -> tuple[str, ...]:
    """Return an option's names on the command line."""
    return found.flags or ("--" + found.name.replace("_", "-"),)


class Job(Protocol[P, O_contra, R_co]):
    """A job's function. It is called with the fields of its options class as arguments, or with one object of that
    class.
    """

    @property
    def options(self) -> type[Any]:
        """Return the job's options class."""

    @overload
    def __call__(self, options: O_contra, /) -> R_co: ...
    @overload
    def __call__(self, *args: P.args, **named: P.kwargs) -> R_co: ...


def job(options: Callable[P, O_contra]) -> Callable[[Callable[[O_contra], R_co]], Job[P, O_contra, R_co]]:
    """Create a job's function from a function that accepts an object of the job's options class."""
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
    """Return the docstring for a job's function, including its parameters."""
    text = inspect.getdoc(work) or ""
    before, raises, errors = text.partition(":raises")
    lines = []
    for name, found in declared(options).items():
        meaning = found if isinstance(found, str) else found.doc if isinstance(found, Option) else found[1]
        lines.append(f":param {name}: {meaning[0].lower()}{meaning[1:].rstrip('.')}.")
    return "\n".join([before.rstrip(), "", *lines, raises + errors])
