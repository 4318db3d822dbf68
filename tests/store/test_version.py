"""The mark of a store: one that a newer version wrote is refused with the next step, before anything changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cometmq import __version__
from cometmq.clock import SYSTEM_CLOCK
from cometmq.store.config import StoreConfig
from cometmq.store.disk import Disk
from cometmq.store.recovery.opening import open_store
from cometmq.store.version import STORE_VERSION, NewerStoreError, StoreMark, require_readable, version_file


def config_of(root: Path) -> StoreConfig:
    return StoreConfig(store_path_root_dir=str(root), mapped_file_size_commit_log=1 << 20)


def opened(root: Path) -> None:
    found = open_store(config_of(root), SYSTEM_CLOCK, Disk(), is_slave=False)
    found.log.close()
    found.lock.release()


def mark(root: Path, **fields: object) -> None:
    version_file(root).parent.mkdir(parents=True, exist_ok=True)
    check = StoreMark(*(fields[name] for name in ("version", "readable_by", "cometmq"))).check  # type: ignore[arg-type]
    version_file(root).write_text(json.dumps({**fields, "check": check}))


def everything_in(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_a_store_is_marked_when_it_is_opened(tmp_path: Path) -> None:
    assert require_readable(tmp_path) is None
    opened(tmp_path)
    sizes = config_of(tmp_path).file_sizes
    assert require_readable(tmp_path) == StoreMark(STORE_VERSION, 1, __version__, sizes)
    before = version_file(tmp_path).stat().st_mtime_ns
    opened(tmp_path)
    assert version_file(tmp_path).stat().st_mtime_ns == before


def test_a_store_that_this_version_cannot_read_is_refused_unchanged(tmp_path: Path) -> None:
    opened(tmp_path)
    mark(tmp_path, version=7, readable_by=STORE_VERSION + 1, cometmq="9.1", more="of later")
    before = everything_in(tmp_path)
    for _ in range(2):  # the lock is given back
        with pytest.raises(NewerStoreError) as refused:
            opened(tmp_path)
    assert everything_in(tmp_path) == before
    assert str(refused.value) == (
        f"the store in {tmp_path} was written by CometMQ 9.1 (store version 7), and CometMQ {__version__} reads store "
        "versions up to 1; nothing was changed (start it with that version or a newer one, or restore an "
        "earlier backup)"
    )


def test_a_newer_store_that_this_version_can_read_keeps_its_mark(tmp_path: Path) -> None:
    mark(tmp_path, version=7, readable_by=STORE_VERSION, cometmq="9.1")
    before = version_file(tmp_path).read_bytes()
    opened(tmp_path)
    assert version_file(tmp_path).read_bytes() == before


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"version": "x"}', "9", "\xff"])
def test_a_damaged_mark_is_set_aside_and_stops_no_broker(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    opened(tmp_path)
    whole = version_file(tmp_path).read_bytes()
    damaged = whole.replace(b'"readable_by":1', b'"readable_by":9') if damage == "9" else damage.encode("latin-1")
    version_file(tmp_path).write_bytes(damaged)
    opened(tmp_path)
    assert version_file(tmp_path).read_bytes() == whole
    assert damaged in [path.read_bytes() for path in (tmp_path / "comet" / "quarantine").iterdir()]
    assert "comet/store.json: damaged; the store is read as a store of this version" in caplog.text
