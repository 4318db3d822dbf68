"""Paths with a scheme, in every command: those that the option serves are taken, all others are wrong use."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from tests.cli.test_help import ALL

from cometmq.cli.local_path import LocalFile, LocalPath
from cometmq.cli.storage_options import StorageUrl

PLACES = [
    (ctx, param)
    for ctx in ALL
    for param in ctx.command.params
    if isinstance(param.type, click.Path | click.File) or {"--data", "--to", "--report"} & {*param.opts}
]
NO_PATHS = {"cometmq pipeline replay --to", "cometmq pipeline mask copy --to", "cometmq failover handover --to"}
"""They are names of topics or members."""


def named(place: tuple[click.Context, click.Parameter]) -> str:
    return f"{place[0].command_path} {place[1].opts[0]}"


@pytest.mark.parametrize("place", [place for place in PLACES if named(place) not in NO_PATHS], ids=named)
def test_a_path_with_another_scheme_is_wrong_use(
    place: tuple[click.Context, click.Parameter], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx, param = place
    monkeypatch.chdir(tmp_path)
    is_local = isinstance(param.type, LocalPath | LocalFile)
    assert is_local or isinstance(param.type, StorageUrl)
    scheme, refused = ("s3", "s3 is not supported .*file:///data/lake") if is_local else ("ftp", "ftp .*s3://bucket")
    with pytest.raises(click.BadParameter, match=rf"{scheme}://bucket/lake: (the|unknown) scheme {refused}"):
        param.type.convert(f"{scheme}://bucket/lake", param, ctx)
    (tmp_path / "my lake").mkdir()
    kind = LocalPath(path_type=Path)
    assert kind.convert(f"file://{tmp_path}/my%20lake", param, ctx) == tmp_path / "my lake"
    assert [entry.name for entry in tmp_path.iterdir()] == ["my lake"]


def test_many_commands_take_paths() -> None:
    assert {"cometmq pipeline archive --report", "cometmq backup create store", "cometmq broker --data"} <= {
        *map(named, PLACES)
    }
