"""Account files of ACL 1.0 go over to the members of a set, also those that a member has missed."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.broker.member.sets import MemberSet, member_set, until

from cometmq.auth.limits import MAX_COPIED_ACL_BYTES
from cometmq.auth.model import AuthError
from cometmq.auth.plain_copy import BeingChangedError, Contents, NotReadableError, PlainCopy, ReadOnlyFilesError
from cometmq.auth.plain_files import PlainFiles, Seen
from cometmq.auth.users import Cipher
from cometmq.auth.yaml_file import dump_yaml
from cometmq.broker.member.set_member import SetMember

pytestmark = pytest.mark.usefixtures("lines")

OWN = {"accessKey": "broker-key", "secretKey": "secret-of-broker", "admin": True}
TOOLS = {"accessKey": OWN["accessKey"], "secretKey": OWN["secretKey"]}


def account(name: str) -> dict[str, object]:
    return {"accessKey": name, "secretKey": f"secret-of-{name}", "defaultTopicPerm": "PUB"}


def write(directory: Path, *names: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "plain_acl.yml").write_bytes(dump_yaml({"accounts": [OWN, *map(account, names)]}))
    (directory / "plain_acl.yml").chmod(0o600)
    (directory / "tools.yml").write_bytes(dump_yaml(TOOLS))


def names(member: SetMember) -> set[str]:
    access = member.broker.access
    assert access is not None
    assert access.files is not None
    return set(access.files.rules.accounts) - {OWN["accessKey"]}


def master(members: MemberSet) -> SetMember:
    found = members.master
    assert found is not None
    return found


@asynccontextmanager
async def with_accounts(root: Path) -> AsyncIterator[MemberSet]:
    """A set of two members, each with account files in a directory of its own."""
    async with member_set(root, 0, aclEnable="true") as members:
        for name in "ab":
            write(root / f"acl-{name}", "account-1")
            await members.start(name, aclPath=str(root / f"acl-{name}"))
        await until(lambda: members.master is not None and members.in_sync == {"a", "b"})
        yield members


async def start(members: MemberSet, name: str) -> SetMember:
    return await members.start(name, aclPath=str(members.root / f"acl-{name}"))


async def test_accounts_go_over_and_a_deleted_one_does_not_come_back_with_a_member(tmp_path: Path) -> None:
    async with with_accounts(tmp_path) as members:
        first = master(members)
        name = first.machine.me.name
        second = next(one for one in members.members.values() if one is not first)
        down = second.machine.me.name
        write(tmp_path / f"acl-{name}", "account-1", "account-2")
        (tmp_path / f"acl-{name}" / "acl").mkdir()
        (tmp_path / f"acl-{name}" / "acl" / "more.yml").write_bytes(dump_yaml({"accounts": [account("account-3")]}))
        await until(lambda: names(second) == {"account-1", "account-2", "account-3"})
        assert (tmp_path / f"acl-{down}" / "acl" / "more.yml").stat().st_mode & 0o77 == 0
        await members.kill(down)
        write(tmp_path / f"acl-{name}", "account-2")
        (tmp_path / f"acl-{name}" / "acl" / "more.yml").unlink()
        await until(lambda: names(first) == {"account-2"})
        kept = PlainFiles(tmp_path / f"acl-{down}").rules.accounts.keys() - {OWN["accessKey"]}
        assert kept == {"account-1", "account-2", "account-3"}
        again = await start(members, down)
        await until(lambda: names(again) == {"account-2"} and down in members.in_sync)
        await first.hand_over(down, "a test")
        await until(lambda: members.master is again)
        assert names(again) == {"account-2"}
        assert PlainFiles(tmp_path / f"acl-{down}").rules.accounts.keys() == {OWN["accessKey"], "account-2"}


async def test_what_is_edited_at_a_follower_is_replaced_and_kept_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with with_accounts(tmp_path) as members:
        second = next(one for one in members.members.values() if not one.is_serving)
        directory = tmp_path / f"acl-{second.machine.me.name}"
        write(directory, "edited-here")
        edited = (directory / "plain_acl.yml").read_bytes()
        await until(lambda: (directory / "plain_acl.yml.replaced").exists())
        assert (directory / "plain_acl.yml.replaced").read_bytes() == edited
        await until(lambda: names(second) == {"account-1"})

        def has_said_so() -> bool:
            said = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
            return any("plain_acl.yml: replaced by those of the master" in one and ".replaced" in one for one in said)

        await until(has_said_so)  # the thread that replaces the files is faster than the log
        assert "edited-here" not in {*names(master(members))}


async def test_invalid_files_at_the_master_keep_nobody_out_of_the_set(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The master goes on with its accounts of before, and so does the other member."""
    async with with_accounts(tmp_path) as members:
        first = master(members)
        second = next(one for one in members.members.values() if one is not first)
        down = second.machine.me.name
        (tmp_path / f"acl-{first.machine.me.name}" / "plain_acl.yml").write_text("accounts: [")
        await until(lambda: "invalid YAML" in caplog.text)
        await members.kill(down)
        again = await start(members, down)
        await until(lambda: members.in_sync == {"a", "b"})
        assert names(again) == {"account-1"}
        await until(lambda: "the account files are not copied from the master" in caplog.text)


async def test_files_that_are_being_changed_do_not_count_as_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise a tool's change in the same second is answered although the other member does not have it."""
    async with with_accounts(tmp_path) as members:
        first = master(members)
        second = next(one for one in members.members.values() if one is not first)
        with monkeypatch.context() as moment:
            moment.setattr(PlainFiles, "look", lambda _files: asyncio.sleep(0))
            write(tmp_path / f"acl-{first.machine.me.name}", "account-1", "account-2")
            await until(lambda: "cannot copy account files from the master: the master does not" in caplog.text)
            assert names(second) == {"account-1"}
        await until(lambda: names(second) == {"account-1", "account-2"})


@pytest.fixture
def no_log(caplog: pytest.LogCaptureFixture) -> None:
    """A name that is not UTF-8 stands in the log, which the processes of the tests could not send to each other."""
    caplog.set_level(logging.CRITICAL + 1, logger="cometmq")


# --- the files --------------------------------------------------------------------------------------
def copies(tmp_path: Path) -> tuple[PlainCopy, PlainCopy, Path]:
    write(tmp_path / "a", "account-1", "account-2")
    write(tmp_path / "b", "account-1")
    directory = tmp_path / "b"
    return PlainCopy(PlainFiles(tmp_path / "a")), PlainCopy(PlainFiles(directory)), directory


def encrypted(text: str) -> bytes:
    return Cipher(b"secret-of-broker").encrypt("account files", text).encode()


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"files":{}}',
        '{"files":{"plain_acl.yml":"accounts: ["}}',
        '{"files":{"plain_acl.yml":"accounts:\\n- accessKey: short"}}',
        '{"files":{"../plain_acl.yml":""}}',
        '{"files":{"acl/../../x.yml":""}}',
        '{"files":{"acl//x.yml":""}}',
        '{"files":{"acl/tools.yml":""}}',
        '{"files":{"tools.yml":""}}',
        '{"files":{"/etc/x.yml":""}}',
        '{"files":{"acl/x.conf":""}}',
        '{"files":{"acl\\u0000/x.yml":""}}',
    ],
)
def test_files_that_cannot_be_used_replace_nothing(tmp_path: Path, text: str) -> None:
    _, mine, directory = copies(tmp_path)
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    with pytest.raises(AuthError):
        mine.take_over(encrypted(text), "secret-of-broker")
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before


def test_only_the_account_of_a_broker_gets_them_and_only_with_its_secret_key(tmp_path: Path) -> None:
    masters, mine, _ = copies(tmp_path)
    for name in ("account-1", "nobody-at-all"):
        with pytest.raises(AuthError, match="only the account of a broker"):
            masters.exported(name)
    version, data = masters.exported("broker-key")
    assert b"secret-of-account" not in data
    with pytest.raises(AuthError, match="not encrypted with this account's secret key"):
        mine.take_over(data, "another-secret")
    assert mine.version() != version
    mine.take_over(data, "secret-of-broker")
    assert mine.version() == version


def test_files_of_somebody_else_remain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a mounted secret: the file system is read-only."""
    masters, mine, directory = copies(tmp_path)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("cometmq.auth.plain_copy.replace_file", refuse)
    with pytest.raises(ReadOnlyFilesError):
        mine.take_over(masters.exported("broker-key")[1], "secret-of-broker")
    assert PlainFiles(directory).rules.accounts.keys() == {OWN["accessKey"], "account-1"}


@pytest.mark.parametrize("spoil", [lambda path: path.write_text("accounts: ["), lambda path: path.unlink()])
def test_files_that_are_not_in_use_are_not_copied(tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    masters, _, _ = copies(tmp_path)
    spoil(tmp_path / "a" / "plain_acl.yml")
    with pytest.raises(NotReadableError):
        masters.exported("broker-key")


@pytest.mark.parametrize(
    ("name", "encoding"),
    [("x.yml", "utf-16"), ("a\\b.yml", "utf-8"), (os.fsdecode(b"\xff.yml"), "utf-8")],
    ids=["UTF-16", "a backslash", "no UTF-8"],
)
@pytest.mark.usefixtures("no_log")
def test_files_that_others_cannot_take_over_are_named_and_not_copied(tmp_path: Path, name: str, encoding: str) -> None:
    masters, _, _ = copies(tmp_path)
    path = tmp_path / "a" / "acl" / name
    path.parent.mkdir()
    path.write_text("accounts: []", encoding=encoding)
    files = PlainFiles(tmp_path / "a")
    assert masters.version()
    with pytest.raises(NotReadableError, match=r"not UTF-8|rename the file"):
        PlainCopy(files).exported("broker-key")


@pytest.mark.usefixtures("no_log")
def test_a_file_with_any_name_gives_way_to_the_masters(tmp_path: Path) -> None:
    masters, mine, directory = copies(tmp_path)
    odd = directory / "acl" / os.fsdecode(b"\xff.yml")
    odd.parent.mkdir()
    odd.write_text("accounts: []")
    version, data = masters.exported("broker-key")
    mine.take_over(data, "secret-of-broker")
    assert mine.version() == version
    assert not odd.exists()


def test_a_file_that_is_too_large_gives_way_to_the_masters(tmp_path: Path) -> None:
    """Otherwise no copy at this member would ever be complete, and the master would refuse changes by tools."""
    masters, mine, directory = copies(tmp_path)
    large = directory / "acl" / "large.yml"
    large.parent.mkdir()
    large.touch()
    os.truncate(large, MAX_COPIED_ACL_BYTES + 1)
    version, data = masters.exported("broker-key")
    assert set(mine.take_over(data, "secret-of-broker").names) == {"plain_acl.yml", "acl/large.yml"}
    assert mine.version() == version
    assert large.with_name("large.yml.replaced").stat().st_size == MAX_COPIED_ACL_BYTES + 1


def test_files_that_change_while_they_are_read_are_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An editor that writes in place has emptied the file first: the accounts in it would be gone at all others."""
    masters, _, _ = copies(tmp_path)
    path = tmp_path / "a" / "plain_acl.yml"
    text = path.read_bytes()
    read = PlainCopy._read

    def read_then_write(copy: PlainCopy, seen: Seen) -> Contents:
        path.write_bytes(dump_yaml({"accounts": [OWN]}))
        contents = read(copy, seen)
        path.write_bytes(text)
        return contents

    monkeypatch.setattr(PlainCopy, "_read", read_then_write)
    with pytest.raises(BeingChangedError, match="being changed"):
        masters.exported("broker-key")


def test_too_many_bytes_are_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    masters, _, _ = copies(tmp_path)
    monkeypatch.setattr("cometmq.auth.plain_copy.MAX_COPIED_ACL_BYTES", 100)
    with pytest.raises(NotReadableError, match="larger than 100 bytes"):
        masters.version()
