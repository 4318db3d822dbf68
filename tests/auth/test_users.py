from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from cometmq.auth.model import AuthError
from cometmq.auth.plain_files import PlainFiles
from cometmq.auth.policies import EntryInfo, PolicyInfo, User
from cometmq.auth.user_access import UserAccess, migrate
from cometmq.auth.users import Cipher, StoredUser, StoredUsers, UserTable, _stored
from cometmq.remoting.permissions import Action, on_group, on_topic

POLICIES = [PolicyInfo("Custom", [EntryInfo("Topic:Orders", ["Pub"], None, "Allow")])]


@pytest.mark.parametrize("key", [None, b"the operators' key"], ids=["plain", "encrypted"])
def test_users_are_there_again_and_no_password_can_be_read_with_a_key(tmp_path: Path, key: bytes | None) -> None:
    path = tmp_path / "auth.json"
    table = UserTable(path, key)
    table.create("alice", "secret-of-alice", "super")
    table.put_policies("alice", POLICIES)
    assert path.stat().st_mode & 0o777 == 0o600
    assert ("secret-of-alice" in path.read_text()) == (key is None)
    again = UserTable(path, key)
    assert again.users == table.users
    assert "secret-of-alice" not in repr(again.users)
    again.delete("alice")
    assert UserTable(path, key).users == {}


def test_a_password_is_bound_to_its_key_and_its_user(tmp_path: Path) -> None:
    path = tmp_path / "auth.json"
    table = UserTable(path, b"key")
    table.create("alice", "secret-of-alice")
    table.create("mallory", "secret-of-mallory")
    with pytest.raises(AuthError, match="not encrypted with this key"):
        UserTable(path, b"another key")
    with pytest.raises(AuthError, match="are encrypted: set authKeyPath"):
        UserTable(path, None)
    text = path.read_text()
    path.write_text(text.replace('"alice"', '"x"').replace('"mallory"', '"alice"').replace('"x"', '"mallory"'))
    with pytest.raises(AuthError, match="not encrypted with this key"):
        UserTable(path, b"key")


def test_a_change_by_another_process_is_seen_and_a_broken_file_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "auth.json"
    ours, other = UserTable(path, None), UserTable(path, None)
    other.create("alice", "secret-of-alice")
    ours.look()
    assert set(ours.users) == {"alice"}
    for text in ("{", '{"users":[{"username":"","userType":"Normal","userStatus":"enable","password":"x"}]}'):
        path.write_text(text)
        ours.look()
        assert set(ours.users) == {"alice"}
    path.unlink()
    ours.look()
    assert set(ours.users) == {"alice"}


def test_changes_that_are_not_possible_are_errors_in_the_words_of_apache(tmp_path: Path) -> None:
    table = UserTable(tmp_path / "auth.json", None)
    table.create("alice", "secret-of-alice")
    changes: list[tuple[Callable[[], None], str]] = [
        (lambda: table.create("alice", "x"), "The user is existed"),
        (lambda: table.create(" ", "x"), "username can not be blank"),
        (lambda: table.create("bob", " "), "password can not be blank"),
        (lambda: table.create("bob", "x", "Root"), "is not a valid user type"),
        (lambda: table.create("b" * 300, "x"), "at most 255"),
        (lambda: table.update("bob", "x", None, None), "The user is not exist"),
        (lambda: table.put_policies("bob", POLICIES), "The subject of User:bob is not exist"),
        (lambda: table.delete_policies("alice", None, None), "The acl is not exist"),
    ]
    for change, words in changes:
        with pytest.raises(AuthError, match=words):
            change()
    assert table.users["alice"].policies == {}


def test_accounts_of_acl_1_become_users_with_the_same_permissions(tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(
        "accounts:\n"
        "- {accessKey: operators, secretKey: secret-of-operators, admin: true}\n"
        "- accessKey: billing-account\n  secretKey: secret-of-billing\n  defaultTopicPerm: SUB\n"
        "  topicPerms: [Orders=PUB|SUB, Closed=DENY]\n  groupPerms: [billing=SUB]\n"
    )
    path.chmod(0o600)
    files = PlainFiles(tmp_path)
    table = UserTable(tmp_path / "auth.json", None)
    assert migrate(table, files) == 2
    assert migrate(table, files) == 0
    access = UserAccess(table, cluster="C", authorizes=True)
    assert access.account("operators", "10.0.0.1", 0).is_super
    new, old = (model.account("billing-account", "10.0.0.1", 0) for model in (access, files))
    for topic in ("Orders", "Closed", "Other", "%RETRY%billing", "%DLQ%other"):
        for action in (Action.PUB, Action.SUB):
            need = on_topic(topic, action)
            assert (new.refusal(need, 0) is None) == (old.refusal(need, 0) is None), need
    for group in ("billing", "other"):
        need = on_group(group, Action.SUB)
        assert (new.refusal(need, 0) is None) == (old.refusal(need, 0) is None), need
    assert new.signer is not None
    fields = {"AccessKey": "billing-account"}
    assert not new.signer.accepts(fields, b"")


def test_a_change_encodes_only_the_changed_user_and_the_file_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "auth.json"
    table = UserTable(path, None)
    for number in range(20):
        table.create(f"user-{number}", "line\nbreak")
    encoded: list[str] = []

    def noted(user: User, cipher: Cipher | None) -> StoredUser:
        encoded.append(user.name)
        return _stored(user, cipher)

    monkeypatch.setattr("cometmq.auth.users._stored", noted)
    table.put_policies("user-7", POLICIES)
    table.delete("user-3")
    assert encoded == ["user-7"]
    for names in (list(table.users), []):
        for name in [name for name in table.users if name not in names]:
            table.delete(name)
        stored = StoredUsers([_stored(user, None) for user in table.users.values()])
        assert path.read_bytes() == msgspec.json.format(msgspec.json.encode(stored), indent=2)
        assert UserTable(path, None).users == table.users


def test_no_change_makes_a_file_that_the_next_start_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "auth.json"
    table = UserTable(path, None)
    table.create("alice", "secret-of-alice")
    monkeypatch.setattr("cometmq.auth.users.MAX_USERS_FILE_BYTES", path.stat().st_size + 10)
    with pytest.raises(AuthError, match="would be larger than"):
        table.create("bob", "secret-of-bob")
    assert set(table.users) == set(UserTable(path, None).users) == {"alice"}
