"""Paths with a scheme: those of this machine are served, all others refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cometmq.backup.create import Options
from cometmq.backup.directory import DirectoryBackup
from cometmq.backup.verify import restore_backup
from cometmq.broker.config import BrokerConfig
from cometmq.client.dead_letters import Ledger
from cometmq.console.options import ConsoleOptions
from cometmq.namesrv.config import NamesrvConfig
from cometmq.options import ConfigError, Option, load_options, options_of
from cometmq.options.forms import PATH
from cometmq.paths import PathError, local_path


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ("/data/lake", "/data/lake"),
        ("lake", "lake"),
        ("./s3:/lake", "s3:/lake"),
        ("a:b", "a:b"),
        ("C:/users", "C:/users"),
        ("file:///data/lake", "/data/lake"),
        ("file:/data/lake", "/data/lake"),
        ("FILE:///data/my%20lake", "/data/my lake"),
        ("file://localhost/data/lake", "/data/lake"),
        (Path("file:///data/lake"), "/data/lake"),
        (Path("/data/lake"), "/data/lake"),
    ],
)
def test_a_local_path_is_itself_and_a_file_url_is_its_path(written: str | Path, path: str) -> None:
    assert local_path(written) == Path(path)


@pytest.mark.parametrize(
    "written",
    [
        *("s3://bucket/lake", "s3a://b/l", "hdfs://name:8020/lake", "gs://b", "abfss://c@a.dfs.core.windows.net/l"),
        *("http://host/lake", "dbfs:/lake", "s3:/bucket", "s3:", "S3://b", "sftp+ssh://h/l", Path("s3://bucket/lake")),
    ],
)
def test_another_scheme_is_refused_with_those_that_are_served(written: str | Path) -> None:
    with pytest.raises(PathError, match=r"the scheme .* is not supported \(use a path .* file:///data/lake"):
        local_path(written)


@pytest.mark.parametrize("written", ["file://host/data", "file://", "file:", "file:////host/share"])
def test_a_file_of_another_machine_is_refused(written: str) -> None:
    with pytest.raises(PathError, match="is not a file on this machine"):
        local_path(written)


CONFIGS = [(kind, of) for kind in (BrokerConfig, NamesrvConfig) for of in options_of(kind).values()]


@pytest.mark.parametrize(("kind", "of"), CONFIGS, ids=lambda value: getattr(value, "key", ""))
def test_every_key_with_a_path_takes_those_of_this_machine(kind: type, of: Option) -> None:
    is_path = (
        isinstance(of.default, str)
        and not of.form.choices
        and re.search(r"(path|dir|file)$", of.key, re.IGNORECASE) is not None
    )
    assert (of.form is PATH) == (is_path or of.key == "storePathRootDir" or of.key == "storePathCommitLog")
    if of.form is not PATH:
        return
    for apache in ({}, {of.key: of}):
        with pytest.raises(
            ConfigError, match=rf"conf:1: {of.key}=s3://b/lake: the scheme s3 is not supported \(use a path"
        ):
            load_options(kind, f"{of.key}=s3://b/lake", source="conf", apache=apache)
        loaded: Any
        loaded, _ = load_options(kind, f"{of.key}=file:///data/lake", source="conf", apache=apache)
        assert getattr(loaded, of.name) == "/data/lake"


def in_no_scheme(call: Callable[[str], object]) -> None:
    with pytest.raises(PathError, match="the scheme s3 is not supported"):
        call("s3://bucket/lake")


def test_every_function_of_backup_and_console_takes_paths_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    backup = DirectoryBackup(tmp_path)
    in_no_scheme(lambda url: restore_backup(backup, Path(url)))
    in_no_scheme(lambda url: Options(Path(url), backup))
    in_no_scheme(lambda url: Options(tmp_path, backup, commit_log=Path(url)))
    in_no_scheme(lambda url: ConsoleOptions("", Path(url)))
    in_no_scheme(lambda url: ConsoleOptions("", tmp_path, certificate=Path(url)))
    in_no_scheme(lambda url: ConsoleOptions("", tmp_path, key=Path(url)))
    in_no_scheme(lambda url: ConsoleOptions("", tmp_path, reports=Path(url)))
    in_no_scheme(lambda url: ConsoleOptions("", tmp_path, audit_logs=(Path(url),)))
    in_no_scheme(lambda url: Ledger(Path(url)))
    assert ConsoleOptions("", Path("file:///data")).data == Path("/data")
    assert list(tmp_path.iterdir()) == []
