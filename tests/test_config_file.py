"""Tables on disk: at every moment one of two files is whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.config_file import ConfigFile
from cometmq.fastjson import FastjsonError


@pytest.fixture
def table(tmp_path: Path) -> ConfigFile:
    return ConfigFile(tmp_path / "config" / "table.json")


def backup(table: ConfigFile) -> Path:
    return table.path.with_name("table.json.bak")


def test_a_table_that_was_never_saved_is_none(table: ConfigFile) -> None:
    assert table.load() is None


def test_the_version_before_is_kept(table: ConfigFile) -> None:
    for content in (b'{"a":1}', b'{"a":2}', b'{"a":3}'):
        table.save(content)
    assert table.load() == {"a": 3}
    assert backup(table).read_bytes() == b'{"a":2}'
    assert sorted(path.name for path in table.path.parent.iterdir()) == ["table.json", "table.json.bak"]


@pytest.mark.parametrize(
    "damage", [b"", b" \n", b'{"a":', b"\xff\xfe", None], ids=["empty", "blank", "cut", "no text", "gone"]
)
def test_a_damaged_file_is_replaced_by_the_version_before(table: ConfigFile, damage: bytes | None) -> None:
    table.save(b'{"a":1}')
    table.save(b'{"a":2}')
    if damage is None:
        table.path.unlink()
    else:
        table.path.write_bytes(damage)
    assert table.load() == {"a": 1}


def test_when_neither_can_be_read_it_is_said(table: ConfigFile) -> None:
    table.save(b'{"a":1}')
    table.save(b'{"a":2}')
    table.path.write_bytes(b"{")
    backup(table).write_bytes(b"[")
    with pytest.raises(FastjsonError):
        table.load()


def test_a_save_that_fails_leaves_the_file_as_it_was(table: ConfigFile) -> None:
    table.save(b'{"a":1}')
    (table.path.parent / "table.json.tmp").mkdir()  # where the new file would be written
    with pytest.raises(OSError, match="directory"):
        table.save(b'{"a":2}')
    assert table.load() == {"a": 1}
