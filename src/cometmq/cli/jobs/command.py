"""The runner of all jobs: the command of a job comes from its class of options, and ends with its report."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from cometmq.cli.connection import namesrv_alone
from cometmq.cli.local_path import LocalPath
from cometmq.cli.moments import Duration, Moment
from cometmq.spark.errors import OptionError
from cometmq.spark.jobs.job import Kind, Option, fields_of, flags_of
from cometmq.visible import visible

if TYPE_CHECKING:
    from cometmq.spark.jobs.report.report import Report

T = TypeVar("T")
R = TypeVar("R", bound="Report")
After = Callable[[Any, str], object]

DIRECTORY: Final = LocalPath(path_type=Path, file_okay=False)
FILE: Final = LocalPath(path_type=Path, dir_okay=False)
_SECRET_PLACES: Final = {
    "secretKey": "secretKeyFile=FILE or secretKeyEnv=VARIABLE",
    "securityToken": "credentialsFile=FILE, a file like tools.yml",
    "tlsKeyPassword": "tlsKeyPasswordFile=FILE",
}
"""Options whose values are secrets, and the options that a command takes instead."""
_ACCESS_FORM: Final = ", by an option of the source: accessKey, secretKeyFile, useTLS …; may be given several times."
_UNITS_MS: Final = ((24 * 3_600_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"))
_TYPES: Final[Mapping[Kind, click.ParamType[Any]]] = {
    Kind.DIRECTORY: DIRECTORY,
    Kind.OLD_DIRECTORY: LocalPath(path_type=Path, file_okay=False, exists=True),
    Kind.FILE: FILE,
    Kind.MOMENT: Moment(),
    Kind.DURATION: Duration(),
}
_CONVERTED: Final[Mapping[Kind, Callable[[Any], Any]]] = {
    Kind.SECONDS: lambda seconds: round(seconds * 1000),
    Kind.MEBIBYTES: lambda mebibytes: mebibytes << 20,
    Kind.DURATION: lambda span: round(span / timedelta(milliseconds=1)),
    Kind.NAMES: lambda text: tuple(name.strip() for name in text.split(",") if name.strip()),
}
_SHOWN: Final[Mapping[Kind, Callable[[Any], Any]]] = {
    Kind.SECONDS: lambda ms: ms // 1000,
    Kind.MEBIBYTES: lambda size: size >> 20,
    Kind.DURATION: lambda ms: next(f"{ms // unit}{name}" for unit, name in _UNITS_MS if ms % unit == 0),
}
REPORT_OPTIONS: Final = (
    click.Option(["--report", "page"], type=FILE, help="Write the report as HTML too."),
    click.Option(
        ["-o", "--output"],
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="Form of the report.",
    ),
)
"""The last options of every job."""


def job_command(name: str, options: type, function: str, *, after: After | None = None) -> click.Command:
    """Make the command of a job.

    :param options: its class of options; the docstring is the help of the command.
    :param function: module below ``cometmq.spark.jobs`` and name of the job's function, loaded when it is called.
    :param after: called with the report and the form of output when the report is written.
    """

    def run(page: Path | None, output: str, **said: Any) -> int:
        if "source" in dict(fields_of(options)):
            demand_one_place()
        with job_running(options) as running:
            done = load(function)(options_of(options, said, **running))
        code = end(done, page, output)
        if after is not None:
            after(done, output)
        return code

    params = [*params_of(options), *REPORT_OPTIONS]
    return click.Command(name, params=params, callback=run, help=inspect.getdoc(options))


def demand_one_place() -> None:
    """Refuse nameservers on the command line of a job that reads files; those of the environment give way to files.

    :raises click.UsageError: both are given.
    """
    ctx = click.get_current_context()
    files = [name for name in ("archive", "store") if ctx.params.get(name) is not None]
    if files and ctx.get_parameter_source("namesrv") is ParameterSource.COMMANDLINE:
        raise click.UsageError(f"--namesrv is for brokers, and --{files[0]} is read without them", ctx)


def load(function: str) -> Callable[..., Any]:
    """Return the function ``module:name`` below ``cometmq.spark.jobs``."""
    module, _, name = function.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(f"cometmq.spark.jobs.{module}"), name)
    return found


# Options ---------------------------------------------------------------------------------------------


class JobOption(click.Option):
    """An option that comes from a field of a class of options."""

    field: str
    """The field, ``selection.keys`` for one of a class inside."""


class JobArgument(click.Argument):
    """An argument that comes from a field of a class of options."""

    field: str


def params_of(options: type, *, only: Iterable[str] | None = None, inside: str = "") -> list[click.Parameter]:
    """The parameters of a command for a class of options.

    :param only: those fields.
    :param inside: the field whose class this is, with a dot behind it.
    """
    defaults = {field.name: field.default for field in dataclasses.fields(options)}
    found: list[click.Parameter] = []
    for name, said in fields_of(options):
        if only is not None and name not in only:
            continue
        if isinstance(said, tuple):
            found += params_of(said[0], inside=f"{name}.")
        elif isinstance(said, Option):
            if said.kind is Kind.NAMESRV:
                found.append(_context())
            found.append(_param(inside + name, said, None if inside else defaults[name]))
    return sorted(found, key=lambda param: param.name == "master")


def _param(field: str, of: Option, default: Any) -> click.Parameter:
    name = field.rpartition(".")[2]
    flags = flags_of(name, of)
    made: JobOption | JobArgument
    if not flags[0].startswith("-"):
        made = JobArgument([name], type=_type_of(of))
    elif of.kind is Kind.NAMESRV:
        made = _namesrv()
    else:
        default = None if default in (dataclasses.MISSING, None, "", ()) else default
        made = JobOption(
            [param_of(name, of), *flags],
            type=_type_of(of),
            default=default if default is None else _SHOWN.get(of.kind, lambda value: value)(default),
            show_default=default is not None and of.kind is not Kind.FLAG,
            is_flag=of.kind is Kind.FLAG,
            multiple=of.many or of.kind in (Kind.SETTINGS, Kind.ACCESS),
            required=of.required,
            metavar="NAME=VALUE" if of.kind in (Kind.SETTINGS, Kind.ACCESS) else None,
            callback=_callback(of),
            help=of.help + (_ACCESS_FORM if of.kind is Kind.ACCESS else ""),
        )
    made.field = field
    return made


def param_of(name: str, of: Option) -> str:
    """The name of an option's parameter in click: one command has several fields of the same name."""
    return flags_of(name, of)[-1 if of.kind is Kind.NAMESRV else 0].lstrip("-").replace("-", "_")


def _type_of(of: Option) -> click.ParamType[Any] | None:
    if of.choices:
        return click.Choice(of.choices)
    if of.kind in (Kind.COUNT, Kind.MEBIBYTES):
        return click.IntRange(of.least, of.most)
    if of.kind in (Kind.NUMBER, Kind.SECONDS):
        return click.FloatRange(of.least, of.most, min_open=of.kind is Kind.NUMBER)
    return _TYPES.get(of.kind)


def _callback(of: Option) -> Callable[[click.Context, click.Parameter, Any], Any] | None:
    if of.kind is Kind.ACCESS:
        return _access
    if of.kind is Kind.SETTINGS:
        return lambda _, parameter, settings: settings_of(parameter.opts[0], settings) or None
    convert = _CONVERTED.get(of.kind)
    return None if convert is None else lambda _, __, value: None if value is None else convert(value)


def _of_all_commands() -> dict[str, click.Option]:
    """The ``-n`` and the ``--context`` of all commands."""

    def command() -> None: ...

    params: list[click.Option] = namesrv_alone(command).__click_params__  # type: ignore[attr-defined]
    return {param.name or "": param for param in params}


def _context() -> click.Option:
    return _of_all_commands()["context"]


def _namesrv() -> JobOption:
    of = _of_all_commands()["namesrv"]
    return JobOption(
        of.opts,
        envvar=of.envvar,
        default=of.default,
        show_default=True,
        metavar=of.metavar,
        callback=of.callback,
        help=of.help,
    )


def options_of(options: type[T], said: Mapping[str, Any], **more: Any) -> T:
    """Make the object of a class of options from the parameters of its command, and ``more`` fields."""
    defaults = {field.name: field.default for field in dataclasses.fields(options)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for name, of in fields_of(options):
        if isinstance(of, tuple):
            values[name] = _nested(of[0], said)
        elif isinstance(of, Option) and param_of(name, of) in said:
            values[name] = said[param_of(name, of)]
    values = {
        name: value for name, value in values.items() if value is not None or defaults[name] is dataclasses.MISSING
    }
    return options(**values | more)


def _nested(options: Any, said: Mapping[str, Any]) -> Any:
    values = {name: said[param_of(name, of)] for name, of in fields_of(options) if isinstance(of, Option)}
    if hasattr(options, "of_command"):
        return options.of_command(**values)
    return options(**values)


def settings_of(option: str, settings: Iterable[str]) -> dict[str, str]:
    """Read several ``NAME=VALUE``.

    Everybody on a machine sees the arguments of a process, so a secret is named by its file or variable.

    :raises click.UsageError: one has another form, a name has two values, or one holds a secret; the message does not
        show it.
    """
    options: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise click.UsageError(f"{option} {setting}: the form is NAME=VALUE")
        for secret, place in _SECRET_PLACES.items():
            if name.lower() == secret.lower():
                raise click.UsageError(
                    f"{option} {secret}: everybody on this machine would see it in the list of processes; give {place}"
                )
        if options.setdefault(name, value) != value:
            raise click.UsageError(f"{option} {setting}: {name} has another value already, {options[name]}")
    return options


def _access(_: click.Context, parameter: click.Parameter, settings: tuple[str, ...]) -> dict[str, str] | None:
    from cometmq.spark.access import access_options

    try:
        return access_options(settings_of(parameter.opts[0], settings)) or None
    except OptionError as error:
        raise click.BadParameter(str(error)) from error


# A run -----------------------------------------------------------------------------------------------


def tell(step: object) -> None:
    """Write on stderr what a job begins to do, or has done."""
    click.echo(f"{step} …" if isinstance(step, str) else str(step), err=True)


@contextmanager
def wrong_use() -> Iterator[None]:
    """Treat a wrong argument of a job as a wrong use of its command.

    :raises click.UsageError: for every ``OptionError`` within the block.
    """
    try:
        yield
    except OptionError as error:
        raise click.UsageError(str(error), click.get_current_context()) from error


@contextmanager
def job_running(options: type, on_signal: Callable[[], object] = lambda: None) -> Iterator[dict[str, Any]]:
    """Give the fields by which a job says how far it is and can be stopped, as far as its options have them.

    SIGTERM ends a job that commits step by step after the step under way; ``on_signal`` is called first.

    :raises click.UsageError: for every ``OptionError`` within the block.
    """
    names = {field.name for field in dataclasses.fields(options)}
    running: dict[str, Any] = {name: tell for name in ("on_step", "on_batch") if name in names}
    before: Any = None
    if "stop" in names:
        running["stop"] = stop = threading.Event()

        def handle(*_: object) -> None:
            on_signal()
            stop.set()

        before = signal.signal(signal.SIGTERM, handle)
    try:
        with wrong_use():
            yield running
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def end(done: Report, page: Path | None, output: str, **more: Any) -> int:
    """Write the report to stdout, and as a page where that is asked for; return the exit code.

    :param output: ``table``, or anything else for JSON.
    :param more: more members of the JSON.
    """
    if output == "table":
        click.echo(visible(done.render(), lines=True))
    else:
        click.echo(json.dumps(done.to_dict() | more | {"exit_code": done.exit_code}, indent=2))
    if page is not None:
        done.write_page(page, _header())
        click.echo(f"the report is in {page}", err=True)
    return done.exit_code


def _header() -> str:
    """The command with the options that were given; credentials are left out."""
    ctx = click.get_current_context()
    words = [ctx.command_path]
    for param in ctx.command.params:
        given = ctx.params.get(param.name or "")
        if not isinstance(param, JobOption | JobArgument) or isinstance(given, dict):
            continue
        if ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE:
            flag = param.opts[-1] if isinstance(param, JobOption) else ""
            values = given if isinstance(given, tuple) else ("",) if given is True else (given,)
            words += [f"{flag} {value}".strip() for value in values]
    return " ".join(words)
