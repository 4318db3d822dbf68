"""Generates the commands of all jobs from their options classes. Each command runs its job and writes the
job's report.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from cometmq.cli.connection import CONTEXT_OPTION, NAMESRV_OPTION
from cometmq.cli.local_path import LocalPath
from cometmq.cli.moments import FormType, Moment
from cometmq.cli.storage_options import StorageUrl
from cometmq.errors import SPARK, SPARK_MODULES, require
from cometmq.options import Option
from cometmq.options.declared import declared
from cometmq.options.forms import FLAG, TIME
from cometmq.spark.errors import OptionError
from cometmq.spark.jobs.job import (
    ACCESS,
    CATALOG_SETTINGS,
    KEY_STORE,
    NAMESRV,
    NEW_PLACE,
    OLD_DIRECTORY,
    OLD_PLACE,
    SETTINGS,
    STORAGE_SETTINGS,
    flags_of,
)
from cometmq.spark.jobs.job import DIRECTORY as DIRECTORY_FORM
from cometmq.spark.jobs.job import FILE as FILE_FORM
from cometmq.visible import visible

if TYPE_CHECKING:
    from click.types import OptionHelpExtra

    from cometmq.spark.jobs.report.report import Report

T = TypeVar("T")
R = TypeVar("R", bound="Report")
After = Callable[[Any, str], object]

DIRECTORY: Final = LocalPath(path_type=Path, file_okay=False)
FILE: Final = LocalPath(path_type=Path, dir_okay=False)
_ACCESS_FORM: Final = ", as a source option such as accessKey, secretKeyFile or useTLS. May be repeated."
_PATHS: Final = {
    DIRECTORY_FORM: DIRECTORY,
    OLD_DIRECTORY: LocalPath(path_type=Path, file_okay=False, exists=True),
    FILE_FORM: FILE,
    KEY_STORE: FormType(KEY_STORE),
    NEW_PLACE: StorageUrl(),
    OLD_PLACE: StorageUrl(exists=True),
}
REPORT_OPTIONS: Final = (
    click.Option(
        ["--report", "page"], type=StorageUrl(file=True), help="Also write the report to this file or URL as HTML."
    ),
    click.Option(
        ["-o", "--output"],
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="Format of the report.",
    ),
)
"""Options of every job, listed last in its help."""


def job_command(
    name: str, options: type, function: str, *, after: After | None = None, streams: bool = False
) -> click.Command:
    """Return the click command of a job.

    :param options: the job's options class; its docstring is the command's help.
    :param function: name of the job's module below ``cometmq.spark.jobs``, and name of its function. The module is
        loaded when the command runs.
    :param after: function that is called with the report and the output format, after the report has been written.
    :param streams: True if the job runs a streaming query, whose end by a signal Spark would report as an error.
    """

    def run(page: str | None, output: str, **parameters: Any) -> int:
        if "source" in declared(options):
            demand_one_place()
        with job_running(options, _silence_spark if streams else lambda: None) as running:
            done = load(function)(build_options(options, parameters, **running))
        code = finish_job(done, page, output)
        if after is not None:
            after(done, output)
        return code

    params = [*params_of(options), *REPORT_OPTIONS]
    return click.Command(name, params=params, callback=run, help=inspect.getdoc(options))


def _silence_spark() -> None:
    from cometmq.spark.session.interruption import silence_spark

    silence_spark()


def demand_one_place() -> None:
    """Reject nameservers on the command line of a job that reads files. In this case, nameservers from the environment
    are ignored.

    :raises click.UsageError: nameservers and files are both given.
    """
    ctx = click.get_current_context()
    files = [name for name in ("archive", "store") if ctx.params.get(name) is not None]
    if files and ctx.get_parameter_source("namesrv") is ParameterSource.COMMANDLINE:
        raise click.UsageError(f"--namesrv cannot be used with --{files[0]}, which is read without brokers", ctx)


def load(function: str) -> Callable[..., Any]:
    """Return the function ``module:name`` below ``cometmq.spark.jobs``.

    :raises MissingPackageError: Spark is not installed. Showing a command's help does not need Spark.
    """
    require("a Spark job", SPARK, *SPARK_MODULES)
    module, _, name = function.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(f"cometmq.spark.jobs.{module}"), name)
    return found


# Options ---------------------------------------------------------------------------------------------


class JobOption(click.Option):
    """A click option that is generated from a field in an options class."""

    field: str = ""
    """Name of the field, or its path, such as ``selection.keys``, if it is in a nested class."""
    key: str = ""
    """Source option that receives the field's value."""

    def get_help_extra(self, ctx: click.Context) -> OptionHelpExtra:
        """Add a number's range to the help text."""
        extra = super().get_help_extra(ctx)
        if isinstance(self.type, FormType) and self.type.form.minimum is not None:
            extra["range"] = self.type.form.words
        return extra


class JobArgument(click.Argument):
    """A click argument that is generated from a field in an options class."""

    field: str = ""


def params_of(options: type, *, only: Iterable[str] | None = None, inside: str = "") -> list[click.Parameter]:
    """Return the click parameters for an options class.

    :param only: the fields to use.
    :param inside: name of the field with this class, followed by a dot.
    """
    params: list[click.Parameter] = []
    for name, found in declared(options).items():
        if only is not None and name not in only:
            continue
        if isinstance(found, tuple):
            params += params_of(found[0], inside=f"{name}.")
        elif isinstance(found, Option):
            if found.form is NAMESRV:
                params.append(click.Option(["--context"], **CONTEXT_OPTION))
            params.append(_param(inside, found))
    return sorted(params, key=lambda param: param.name == "master")


def _param(inside: str, found: Option) -> click.Parameter:
    flags = flags_of(found)
    form = found.form
    param: JobOption | JobArgument
    if not flags[0].startswith("-"):
        param = JobArgument([found.name], type=_type_of(found))
    elif form is NAMESRV:
        param = JobOption(flags, **NAMESRV_OPTION)
    else:
        is_mapping, is_flag = form in (SETTINGS, ACCESS, STORAGE_SETTINGS, CATALOG_SETTINGS), form is FLAG
        has_default = not inside and found.default not in (dataclasses.MISSING, None, "", ())
        param = JobOption(
            [param_of(found), *flags],
            type=None if is_flag else _type_of(found),
            default=(found.default if is_flag else form.show(found.default)) if has_default else None,
            show_default=has_default and not is_flag,
            is_flag=is_flag,
            multiple=found.many or is_mapping,
            required=found.required,
            callback=_MERGES.get(form),
            help=found.doc + (_ACCESS_FORM if form is ACCESS else ""),
        )
    if isinstance(param, JobOption):
        param.key = found.key
    param.field = inside + found.name
    return param


def param_of(found: Option) -> str:
    """Return the name of an option's parameter in click. The name is unique, although a command may have several fields
    with the same name.
    """
    return flags_of(found)[-1 if found.form is NAMESRV else 0].lstrip("-").replace("-", "_")


def _type_of(found: Option) -> click.ParamType[Any]:
    if found.form.choices:
        return click.Choice(found.form.choices)
    if found.form is TIME:
        return Moment()
    return _PATHS.get(found.form) or FormType(found.form)


def _merge_settings(
    ctx: click.Context, param: click.Parameter, settings: tuple[tuple[str, str], ...]
) -> dict[str, str] | None:
    merged: dict[str, str] = {}
    for name, value in settings:
        if merged.setdefault(name, value) != value:
            raise click.BadParameter(f"{name} has another value already, {merged[name]}", ctx, param)
    return merged or None


def _merge_access(
    ctx: click.Context, param: click.Parameter, settings: tuple[tuple[str, str], ...]
) -> dict[str, str] | None:
    from cometmq.spark.security_options import access_options

    try:
        return access_options(_merge_settings(ctx, param, settings)) or None
    except OptionError as error:
        raise click.BadParameter(str(error), ctx, param) from error


def _merge_storage(
    ctx: click.Context, param: click.Parameter, settings: tuple[tuple[str, str], ...]
) -> dict[str, str] | None:
    from cometmq.spark.object_stores import parse_storage

    merged = _merge_settings(ctx, param, settings)
    try:
        parse_storage(merged or {})
    except OptionError as error:
        raise click.BadParameter(str(error), ctx, param) from error
    return merged


_MERGES: Final = {
    SETTINGS: _merge_settings,
    CATALOG_SETTINGS: _merge_settings,
    ACCESS: _merge_access,
    STORAGE_SETTINGS: _merge_storage,
}


def build_options(options: type[T], parameters: Mapping[str, Any], **more: Any) -> T:
    """Create an options object from the values of the command's parameters and from the fields in ``more``."""
    values: dict[str, Any] = {}
    for name, found in declared(options).items():
        if isinstance(found, tuple):
            values[name] = _nested(found[0], parameters)
        elif isinstance(found, Option) and param_of(found) in parameters:
            values[name] = parameters[param_of(found)]
            if values[name] is None and found.default is not dataclasses.MISSING:
                del values[name]
    return options(**values | more)


def _nested(options: Any, parameters: Mapping[str, Any]) -> Any:
    values = {
        name: parameters[param_of(found)] for name, found in declared(options).items() if isinstance(found, Option)
    }
    make = getattr(options, "of_command", options)
    return make(**values)


# A run -----------------------------------------------------------------------------------------------


def print_step(step: object) -> None:
    """Write a job's progress to stderr: the text of the step that begins, or the step's result."""
    click.echo(f"{step} …" if isinstance(step, str) else str(step), err=True)


@contextmanager
def wrong_use() -> Iterator[None]:
    """Report an invalid argument of a job as wrong use of its command.

    :raises click.UsageError: raised for every ``OptionError`` in the block.
    """
    try:
        yield
    except OptionError as error:
        ctx = click.get_current_context()
        raise click.UsageError(_users_words(error, ctx), ctx) from error


def _users_words(error: OptionError, ctx: click.Context) -> str:
    """Return an error's text with the option's command-line name, for example ``--pattern`` for subscribePattern."""
    is_setting = any(isinstance(given, dict) and error.option in given for given in ctx.params.values())
    for param in ctx.command.params:
        if isinstance(param, JobOption) and param.key == error.option and not is_setting:
            flag = next(opt for opt in param.opts if opt.startswith("--"))
            return str(OptionError(f"{flag} {error.reason}", next_step=error.next_step))
    return str(error)


@contextmanager
def job_running(options: type, on_signal: Callable[[], object] = lambda: None) -> Iterator[dict[str, Any]]:
    """Yield the option values through which a job reports its progress and is stopped, if its options class has them.

    After SIGTERM, ``on_signal`` is called. A job that commits step by step then finishes the current step and ends.

    :raises click.UsageError: raised for every ``OptionError`` in the block.
    """
    names = {field.name for field in dataclasses.fields(options)}
    running: dict[str, Any] = {name: print_step for name in ("on_step", "on_batch") if name in names}
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


def finish_job(done: Report, page: str | None, output: str, **more: Any) -> int:
    """Write a job's report to stdout and, if ``page`` is given, to an HTML file or URL. Return the exit code.

    :param output: ``table``, or anything else for JSON.
    :param more: additional members for the JSON.
    """
    if output == "table":
        click.echo(visible(done.render(), lines=True))
    else:
        click.echo(json.dumps(done.to_dict() | more | {"exit_code": done.exit_code}, indent=2))
    if page is not None:
        done.write_page(page, _header(), storage=click.get_current_context().params.get("storage"))
        click.echo(f"the report was written to {page}", err=True)
    return done.exit_code


def _header() -> str:
    """Return the command line as the user wrote it, without credentials."""
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
