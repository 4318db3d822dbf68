"""Contexts: precedence, secrets by reference, a private file, and what goes wrong with them."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path

import click
import pytest
from tests.cli.conftest import CommandLine
from tests.cli.test_help import ALL

from cometmq.cli.contexts import ContextError, read_contexts, use_context
from cometmq.cli.main import adopt_tools_file
from cometmq.remoting.security import VARIABLES, Security
from cometmq.testing import ProcessCluster


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without contexts, and without anything in the environment."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in (*VARIABLES, "NAMESRV_ADDR", "COMETMQ_CONTEXT", "ROCKETMQ_HOME"):
        monkeypatch.setenv(name, "before")  # so that what a test sets is undone
        monkeypatch.delenv(name)
    return tmp_path / "cometmq" / "contexts.json"


class Bare(CommandLine):
    """The command without ``$NAMESRV_ADDR``."""

    @property
    def environment(self) -> dict[str, str]:
        return dict(os.environ)


def test_contexts_from_creation_to_deletion(home: Path) -> None:
    cometmq = Bare()
    assert cometmq("context", "list", "-o", "json").json() == []
    created = cometmq("context", "create", "prod", "-n", "a:1;b:2", "--description", "the shop", "-o", "json")
    assert (created.code, created.out) == (0, "")
    assert stat.S_IMODE(home.stat().st_mode) == 0o600
    taken = cometmq("context", "create", "prod", "-n", "c:3")
    assert (taken.code, taken.err) == (1, "cometmq: context prod already exists (add --replace to replace it)\n")
    assert cometmq("context", "create", "test", "-n", "c:3", "--use").code == 0
    rows = {row["name"]: row for row in cometmq("context", "list", "-o", "json").json()}
    assert (rows["prod"]["current"], rows["test"]["current"]) == ("", "*")
    assert cometmq("context", "use", "prod").code == 0
    assert cometmq("context", "show", "-o", "json").json() == {
        "name": "prod",
        "nameservers": "a:1;b:2",
        "description": "the shop",
        "output": "json",
    }
    unconfirmed = cometmq("context", "delete", "prod")
    assert unconfirmed.code == 2
    assert "leaves no context in use" in unconfirmed.err
    assert cometmq("context", "delete", "prod", "-y").code == 0
    assert cometmq("context", "show").code == 2
    assert read_contexts().current == ""


def test_an_unknown_context_names_the_nearest(home: Path) -> None:
    cometmq = Bare()
    cometmq("context", "create", "production", "-n", "a:1")
    for words in (("--context", "prodution", "topic", "list"), ("topic", "list", "--context", "prodution")):
        refused = cometmq(*words)
        assert (refused.code, refused.err) == (
            1,
            "cometmq: context prodution does not exist (did you mean production?)\n",
        )
    assert "known: production" in cometmq("context", "use", "xyz").err


def test_commands_connect_as_the_context_says(home: Path, cluster: ProcessCluster) -> None:
    cometmq = Bare()
    cometmq("context", "create", "here", "-n", cluster.namesrv_address, "-o", "json", "--use")
    cometmq("context", "create", "away", "-n", "127.0.0.1:1")
    assert cometmq("cluster", "list").json()[0]["broker"] == "broker-0"
    assert cometmq("cluster", "list", "-o", "csv").out.startswith("cluster,")
    away = "no nameserver at 127.0.0.1:1"
    assert away in cometmq("cluster", "list", "--context", "away").err
    assert away in cometmq("--context", "away", "cluster", "list").err
    assert away in cometmq("cluster", "list", "-n", "127.0.0.1:1").err
    assert away in CommandLine()("cluster", "list").err, "the environment has precedence"
    assert CommandLine()("--context", "here", "cluster", "list").code == 0, "the option has precedence"
    assert away in cometmq("produce", "t", "--body", "x", "--context", "away").err
    os.environ["COMETMQ_CONTEXT"] = "away"
    assert away in cometmq("cluster", "list").err
    assert cometmq("cluster", "list", "--context", "here").code == 0
    os.environ["COMETMQ_CONTEXT"] = "none"
    assert "127.0.0.1:9876" in cometmq("cluster", "list").err


def test_secrets_are_read_where_the_context_says(home: Path, tmp_path: Path) -> None:
    cometmq = Bare()
    secrets = tmp_path / "account.yml"
    secrets.write_text("accessKey: of-the-file\nsecretKey: hidden-in-file\n")
    cometmq("context", "create", "file", "-n", "a:1", "--credentials-file", str(secrets))
    references = ("--access-key-env", "SHOP_KEY", "--secret-key-env", "SHOP_SECRET")
    cometmq("context", "create", "env", "-n", "a:1", *references, "--use")
    with pytest.raises(ContextError, match=r"context env: \$SHOP_KEY is not set"):
        use_context("env")
    os.environ |= {"SHOP_KEY": "of-the-env", "SHOP_SECRET": "hidden-in-env"}
    try:
        use_context(None)
        credentials = Security.from_environment().credentials
        assert credentials is not None
        assert (credentials.access_key, credentials.secret_key) == ("of-the-env", "hidden-in-env")
        use_context("file")
        credentials = Security.from_environment().credentials
        assert credentials is not None
        assert credentials.access_key == "of-the-file"
        use_context(None)
        assert Security.from_environment().credentials == credentials, "the environment has precedence"
    finally:
        del os.environ["SHOP_KEY"], os.environ["SHOP_SECRET"]
    assert "hidden" not in home.read_text()
    assert "hidden" not in cometmq("context", "show", "env").out


def test_credentials_of_mqadmin_come_after_the_context(home: Path, tmp_path: Path) -> None:
    for name in ("mqadmin", "context"):
        (tmp_path / name / "conf").mkdir(parents=True)
        (tmp_path / name / "conf" / "tools.yml").write_text(f"accessKey: of-{name}\nsecretKey: secret\n")
    file = tmp_path / "context" / "conf" / "tools.yml"
    assert Bare()("context", "create", "c", "-n", "a:1", "--credentials-file", str(file)).code == 0
    os.environ["ROCKETMQ_HOME"] = str(tmp_path / "mqadmin")
    adopt_tools_file()
    os.environ["COMETMQ_CONTEXT"] = "c"
    use_context(None)
    credentials = Security.from_environment().credentials
    assert credentials is not None
    assert credentials.access_key == "of-context"


def test_tls_of_a_context(home: Path, tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.touch()
    tls = ("--tls", "--tls-trust-cert", str(authority), "--no-tls-check-host")
    assert Bare()("context", "create", "safe", "-n", "a:1", *tls, "--use").code == 0
    use_context(None)
    found = Security.from_environment().tls
    assert found is not None
    assert (found.trust_cert_path, found.check_host, found.auth_server) == (str(authority), False, True)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("none", "-n", "a:1"), "is not a valid context name"),
        (("../x", "-n", "a:1"), "is not a valid context name"),
        (("c", "-n", "nonsense"), "-n nonsense"),
        (("c", "-n", "a:1", "--credentials-file", "/nowhere"), "--credentials-file /nowhere: file not found"),
        (("c", "-n", "a:1", "--access-key-env", "A"), "must be used together"),
        (("c", "-n", "a:1", "--tls-cert", __file__), "need --tls"),
    ],
)
def test_what_create_refuses(home: Path, words: tuple[str, ...], sentence: str) -> None:
    refused = Bare()("context", "create", *words)
    assert refused.code in (1, 2)
    assert sentence in refused.err
    assert not home.exists() or read_contexts().contexts == {}


def test_a_file_that_others_may_write_or_that_is_damaged_is_refused(home: Path) -> None:
    cometmq = Bare()
    cometmq("context", "create", "c", "-n", "a:1")
    home.chmod(0o620)
    assert f"chmod 600 {home}" in cometmq("context", "list").err
    home.chmod(0o600)
    home.write_text('{"contexts": {"c": {"nameservers": "a:1", "password": "x"}}}')
    assert "unknown field `password`" in cometmq("topic", "list").err
    home.write_text("{")
    assert cometmq("context", "create", "d", "-n", "a:1").code == 1
    assert home.read_text() == "{", "what cannot be read is not replaced"


def test_contexts_made_at_the_same_time_are_all_kept(home: Path) -> None:
    cometmq = Bare()
    names = [f"c{number}" for number in range(6)]
    threads = [
        threading.Thread(target=lambda name=name: cometmq.start("context", "create", name, "-n", "a:1").wait(60))
        for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [*json.loads(home.read_text())["contexts"]] == names


def test_every_command_that_connects_takes_a_context() -> None:
    def options(ctx: click.Context) -> set[str]:
        return {flag for param in ctx.command.params for flag in param.opts}

    servers = {"cometmq broker", "cometmq context create", "cometmq proxy"}
    lacking = [
        ctx.command_path
        for ctx in ALL
        if "--namesrv" in options(ctx) and "--context" not in options(ctx) and ctx.command_path not in servers
    ]
    assert lacking == []
