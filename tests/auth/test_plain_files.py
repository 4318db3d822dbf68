from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest
from tests.helpers.pace import is_in_time

from cometmq.auth.limits import MAX_ACL_FILE_BYTES
from cometmq.auth.model import AuthError, DeniedError
from cometmq.auth.plain_files import PlainFiles

ONE = "accounts:\n- accessKey: account-one\n  secretKey: secret-one\n"
TWO = "accounts:\n- accessKey: account-two\n  secretKey: secret-two\n"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o600)


def known(files: PlainFiles) -> set[str]:
    return set(files.rules.accounts)


async def test_a_change_is_in_force_after_two_looks_that_agree(tmp_path: Path) -> None:
    write(tmp_path / "plain_acl.yml", ONE)
    files = PlainFiles(tmp_path)
    write(tmp_path / "acl" / "two.yml", TWO)
    await files.look()
    assert known(files) == {"account-one"}
    await files.look()
    assert known(files) == {"account-one", "account-two"}
    version = files.version
    await files.look()
    await files.look()
    assert files.version == version


async def test_a_file_that_is_gone_or_half_written_for_a_moment_keeps_its_accounts(tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    write(path, ONE)
    files = PlainFiles(tmp_path)
    path.rename(tmp_path / "moved")
    await files.look()
    (tmp_path / "moved").rename(path)
    await files.look()
    assert known(files) == {"account-one"}
    write(path, "accounts:\n")
    await files.look()
    write(path, TWO)
    await files.look()
    assert known(files) == {"account-one"}
    await files.look()
    assert known(files) == {"account-two"}
    path.unlink()
    await files.look()
    await files.look()
    assert known(files) == set()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("accounts: [", "invalid YAML in line"),
        ("accounts:\n- accessKey: account-one\n  secretKey: abc\n", "account-one must have 7 to"),
        ("- a\n- b\n", "not a mapping"),
        ("accounts: !!python/object/apply:os.system ['true']", "invalid YAML"),
        ("a: &a [x]\nb: [*a, *a]", "anchors and aliases"),
        ("accounts: " + "[" * 50 + "]" * 50, "more than 16 levels"),
        ("accounts: " + "[" * 100_000, "line 1"),  # PyYAML 6.0.4 refuses it while it looks ahead
        ("a: " + "[" + "1," * 500_000 + "]", "more than 16 levels or 400,000 values"),
        ("#" * (MAX_ACL_FILE_BYTES + 1), "larger than 4,194,304 bytes"),
        ("accounts: 5", "accounts must be a list"),
        ("globalWhiteRemoteAddresses: ['10.0']", "is not an address"),
        ("a: \x00", "invalid YAML"),
    ],
    ids=range(12),
)
async def test_files_that_are_not_valid_leave_the_accounts_as_they_were(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, words: str
) -> None:
    path = tmp_path / "plain_acl.yml"
    write(path, ONE)
    files = PlainFiles(tmp_path)
    write(path, text)
    began = time.process_time()
    await files.look()
    await files.look()
    assert is_in_time(time.process_time() - began, 5)
    assert known(files) == {"account-one"}
    assert words in caplog.text
    with pytest.raises(AuthError, match=r"plain_acl\.yml"):
        PlainFiles(tmp_path)


def test_a_bomb_of_aliases_is_refused_before_it_grows(tmp_path: Path) -> None:
    levels = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{b}: &{b} [{','.join(f'*{a}' for _ in range(9))}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    write(tmp_path / "plain_acl.yml", levels)
    with pytest.raises(AuthError, match="anchors"):
        PlainFiles(tmp_path)


def test_of_accounts_with_one_key_the_first_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    entry = "- accessKey: account-one\n  secretKey: secret-{}\n  admin: {}\n"
    write(tmp_path / "acl" / "a.yml", "accounts:\n" + "".join(entry.format(n, "false") for n in range(10)))
    write(tmp_path / "plain_acl.yml", "accounts:\n" + entry.format("z", "true"))
    files = PlainFiles(tmp_path)
    assert not files.rules.accounts["account-one"].admin
    assert caplog.text.count("account account-one is ignored") == 10
    assert "secret-" not in caplog.text


def test_without_a_file_there_is_an_error_that_says_where_it_belongs(tmp_path: Path) -> None:
    with pytest.raises(AuthError, match=r"the file is missing: .*plain_acl\.yml.*write the file"):
        PlainFiles(tmp_path)


def test_a_file_that_others_may_read_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "plain_acl.yml", ONE)
    PlainFiles(tmp_path)
    assert not caplog.records
    (tmp_path / "plain_acl.yml").chmod(0o644)
    with caplog.at_level(logging.WARNING):
        PlainFiles(tmp_path)
    assert "set its mode to 600" in caplog.text


def test_accounts_are_found_in_the_order_of_white_addresses_key_and_account(tmp_path: Path) -> None:
    write(
        tmp_path / "plain_acl.yml",
        "globalWhiteRemoteAddresses: ['10.0.0.*']\n" + ONE + "  whiteRemoteAddress: 192.168.0.1\n",
    )
    files = PlainFiles(tmp_path)
    assert files.account(None, "10.0.0.7", 10).signer is None
    assert files.account("account-one", "192.168.0.1", 10).is_super
    assert files.account("account-one", "192.168.0.2", 10).signer is not None
    for key, words in (
        (None, "No accessKey is configured"),
        ("", "No acl config for "),
        ("x" * 2**20, "No acl config"),
    ):
        with pytest.raises(DeniedError, match=words):
            files.account(key, "192.168.0.2", 10)
