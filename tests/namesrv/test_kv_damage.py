"""A damaged KV file keeps no nameserver from starting: it is set aside, and the version before it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.kv import KvConfig
from cometmq.namesrv.server import NameServer

DAMAGES = {
    "cut": b'{"configTable":{"n":{"k":',
    "garbage": b"\x00\xff\xfe garbage",
    "zeros": bytes(100),
    "an array": b"[]",
    "another form": b'{"configTable":{"n":5}}',
    "no table": b'{"configTable":null}',
    "another name": b'{"table":{}}',
    "a number for a value": b'{"configTable":{"n":{"k":5}}}',
    "half a surrogate pair": b'{"configTable":{"n":{"k":"\\ud800"}}}',
    "deep": b"[" * 200_000,
}


def written(file: Path) -> KvConfig:
    """A file that was written twice: its ``.bak`` has the first of two keys."""
    kv = KvConfig(file)
    for key in ("first", "second"):
        kv.put("n", key, "v")
        kv.save(kv.staged)
        kv.saved(kv.staged)
    return kv


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_the_version_before_is_read_and_the_damaged_file_is_kept(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "kvConfig.json"
    written(file)
    file.write_bytes(damage)
    for _start in range(2):
        kv = KvConfig(file)
        assert (kv.get("n", "first"), kv.get("n", "second")) == ("v", None)
    assert [record.levelname for record in caplog.records] == ["ERROR"], "said once"
    assert "kvConfig.json cannot be used" in caplog.text
    assert (tmp_path / "kvConfig.json.damaged.1").read_bytes() == damage
    kv.put("n", "third", "v")
    kv.save(kv.staged)
    assert KvConfig(file).namespace("n") == {"first": "v", "third": "v"}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
async def test_a_nameserver_starts_when_both_are_damaged(tmp_path: Path, damage: bytes) -> None:
    file = tmp_path / "kvConfig.json"
    written(file)
    for name in ("kvConfig.json", "kvConfig.json.bak"):
        (tmp_path / name).write_bytes(damage)
    server = NameServer(NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=str(file)))
    await server.start()
    await server.stop()
    assert server.kv.namespace("n") is None
    kept = sorted(path.name for path in tmp_path.glob("*.damaged.*"))
    assert kept == ["kvConfig.json.bak.damaged.1", "kvConfig.json.damaged.1"]


def test_a_directory_in_its_place_is_moved_too_and_nothing_kept_is_written_over(tmp_path: Path) -> None:
    file = tmp_path / "kvConfig.json"
    for number in (1, 2):
        file.unlink(missing_ok=True)
        file.mkdir()
        assert written(file).get("n", "second") == "v"
        assert (tmp_path / f"kvConfig.json.damaged.{number}").is_dir()
        file.with_name("kvConfig.json.bak").unlink()


@pytest.mark.parametrize("text", [b"", b"  \n"])
def test_an_empty_file_is_none_and_its_bak_is_read(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "kvConfig.json"
    written(file)
    file.write_bytes(text)
    assert KvConfig(file).namespace("n") == {"first": "v"}
