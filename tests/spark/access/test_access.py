"""Options for credentials and TLS: their meaning, contradictions, and that no secret is shown."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cometmq.cli.jobs.pipeline import command as pipeline
from cometmq.client import Credentials, Security, SecurityConfigError, Tls
from cometmq.spark.errors import OptionError
from cometmq.spark.jobs.message_source import MessageSource
from cometmq.spark.options import SECRET_PLACES
from cometmq.spark.security_options import Access, parse_access, server_options
from cometmq.spark.sink.options import parse_sink_options
from cometmq.spark.source.options import parse_options

SECRET = "zq7-very-secret"
BASE = {"namesrvAddr": "a:1", "topic": "orders"}


@pytest.fixture(autouse=True)
def nothing_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROCKETMQ_ACCESS_KEY", "ROCKETMQ_SECRET_KEY", "ROCKETMQ_CREDENTIALS_FILE", "ROCKETMQ_TLS_ENABLE"):
        monkeypatch.delenv(name, raising=False)


def test_source_and_sink_have_them_under_any_case() -> None:
    given = {"accesskey": "sales", "SECRETKEY": SECRET, "securitytoken": "t", "useTls": "true", "tlsCheckHost": "False"}
    expected = Security(Credentials("sales", SECRET, "t"), Tls(check_host=False))
    for options in (parse_options(BASE | given), parse_sink_options(BASE | given)):
        assert options.access.security() == expected
        assert SECRET not in repr(options)
        assert pickle.loads(pickle.dumps(options)) == options


def test_a_secret_may_stand_in_a_file_or_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "secret"
    by_file = parse_access({"accessKey": "sales", "secretKeyFile": str(file)})
    by_variable = parse_access({"accessKey": "sales", "secretKeyEnv": "SALES_SECRET"})
    with pytest.raises(OptionError, match=r"secretKeyFile names a file that cannot be read: .*secret: no such file"):
        by_file.security()
    with pytest.raises(OptionError, match="secretKeyEnv names a missing environment variable: SALES_SECRET") as missing:
        by_variable.security()
    assert "spark.executorEnv.SALES_SECRET" in str(missing.value)
    for secret in (SECRET, "another-secret"):  # a secret that was changed counts from the next connection on
        file.write_text(f"{secret}\n")
        monkeypatch.setenv("SALES_SECRET", secret)
        assert by_file.security() == by_variable.security() == Security(Credentials("sales", secret))
        assert secret.encode() not in pickle.dumps((by_file, by_variable))
    file.write_text(" \n")
    with pytest.raises(OptionError, match="secretKeyFile names an empty file"):
        by_file.security()


def test_a_file_has_both_keys(tmp_path: Path) -> None:
    file = tmp_path / "tools.yml"
    file.write_text(f"accessKey: sales\nsecretKey: {SECRET}\n")
    access = parse_access({"credentialsFile": str(file)})
    assert access.security() == Security(Credentials("sales", SECRET))
    file.write_text("accessKey: sales\n")
    with pytest.raises(SecurityConfigError, match="no secretKey"):
        access.security()


def test_the_key_of_a_certificate_is_opened_by_a_password_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(SECRET)
    paths = {"tlsTrustCertPath": "ca.pem", "tlsCertPath": "own.pem", "tlsKeyPath": "own.key"}
    access = parse_access({"useTLS": "true", **paths, "tlsKeyPasswordFile": str(file)})
    assert access.security() == Security(tls=Tls("ca.pem", "own.pem", "own.key", SECRET))
    assert parse_access({"useTLS": "true", **paths, "tlsKeyPassword": SECRET}).security() == access.security()
    assert SECRET not in repr(access.security())


def test_what_options_leave_open_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "operators")
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", SECRET)
    monkeypatch.setenv("ROCKETMQ_TLS_ENABLE", "true")
    outside = Credentials("operators", SECRET)
    own = {"accessKey": "sales", "secretKey": "s"}
    assert Access().security() == Security(outside, Tls())
    assert parse_access(own).security() == Security(Credentials("sales", "s"), Tls())
    assert parse_access({"useTLS": "false"}).security() == Security(outside)
    assert parse_access({"useTLS": "true", "tlsAuthServer": "false"}).security().tls == Tls(auth_server=False)
    monkeypatch.delenv("ROCKETMQ_SECRET_KEY")
    assert parse_access(own | {"useTLS": "false"}).security() == Security(Credentials("sales", "s"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"accessKey": "sales"}, "accessKey has no effect alone"),
        ({"secretKey": SECRET}, "secretKey has no effect alone"),
        ({"secretKeyEnv": "S"}, "secretKeyEnv has no effect alone"),
        ({"securityToken": SECRET}, "securityToken has no effect alone"),
        (
            {"accessKey": "sales", "secretKey": SECRET, "secretKeyFile": "f"},
            "secretKey and secretKeyFile cannot be combined",
        ),
        ({"credentialsFile": "f", "secretKey": SECRET}, "leave out accessKey and the secret"),
        ({"accessKey": "sales", "secretKey": " "}, "secretKey is empty"),
        ({"useTLS": "yes"}, "useTLS must be true or false"),
        ({"tlsKeyPassword": SECRET}, "tlsKeyPassword has no effect without TLS"),
        ({"useTLS": "false", "tlsCheckHost": "true"}, "tlsCheckHost has no effect without TLS"),
        ({"useTLS": "true", "tlsKeyPassword": SECRET, "tlsKeyPasswordFile": "f"}, "cannot be combined"),
        ({"accessKey": "a", "secretKey": SECRET, "SecretKey": "another-secret"}, "secretKey is given twice"),
        ({"secretkeys": SECRET}, "did you mean secretKey"),
    ],
)
def test_what_contradicts_itself_is_refused_without_the_secret(given: dict[str, str], words: str) -> None:
    for parse in (parse_options, parse_sink_options):
        with pytest.raises(OptionError, match=words) as refused:
            parse(BASE | given)
        assert SECRET not in str(refused.value)
        assert "another-secret" not in str(refused.value)


def test_jobs_take_these_options_and_no_others() -> None:
    account = {"ACCESSKEY": "sales", "secretKey": SECRET}
    assert server_options("a:1", account) == {"namesrvAddr": "a:1", "accessKey": "sales", "secretKey": SECRET}
    assert server_options("a:1", None) == {"namesrvAddr": "a:1"}
    source = MessageSource("a:1", access=account)
    assert source.security() == Security(Credentials("sales", SECRET))
    assert SECRET not in f"{source} {source!r}"
    assert len({source, MessageSource("a:1", access=account)}) == 1
    for given, words in (
        ({"topic": "orders"}, "has no option 'topic'"),
        ({"secretKey": SECRET}, "secretKey has no effect alone"),
        ({"useTLS": "yes"}, "useTLS must be true or false"),
    ):
        with pytest.raises(OptionError, match=words) as refused:
            MessageSource("a:1", access=given).check(["orders"])
        assert SECRET not in str(refused.value)
    with pytest.raises(OptionError, match="omit them; they apply only to nameservers"):
        MessageSource(archive=Path("lake"), access=account).check(["orders"])


def job_commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command below a group, with the words that call it."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from job_commands(command, (*path, name))


ON_BROKERS = {words: of for words, of in job_commands(pipeline) if "namesrv" in {each.name for each in of.params}}


def test_every_job_that_talks_to_brokers_has_access_on_its_command_line() -> None:
    assert {words[0] for words in ON_BROKERS} == {
        "archive",
        "audit",
        "delay",
        "dlq",
        "mask",
        "replay",
        "skew",
        "table",
        "trace",
    }
    for words, command in ON_BROKERS.items():
        options = {name for of in command.params for name in of.opts}
        for servers in options & {"--namesrv", "--to-namesrv", "--groups-namesrv"}:
            assert servers.replace("namesrv", "access") in options, words


@pytest.mark.parametrize("words", ON_BROKERS, ids=" ".join)
def test_no_command_takes_a_secret_as_an_argument(words: tuple[str, ...]) -> None:
    for name in SECRET_PLACES:
        done = CliRunner().invoke(pipeline, [*words, "--access", f"{name.lower()}={SECRET}"])
        assert done.exit_code == 2
        assert f"must not hold {name}: everybody on this machine would see it" in " ".join(done.output.split())
        assert SECRET not in done.output
    wrong = CliRunner().invoke(pipeline, [*words, "--access", "secretFile=s"])
    assert wrong.exit_code == 2
    assert "did you mean secretKeyFile" in " ".join(wrong.output.split())


def test_spark_knows_the_names_of_secret_options() -> None:
    """The default of ``spark.redaction.regex``, by which Spark hides values in plans and in its web page."""
    assert all(re.search("(?i)secret|password|token|access[.]?key", name) for name in SECRET_PLACES)
