"""A console behind a proxy: a form is taken from the address that people open, and from no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from click.testing import CliRunner
from tests.helpers.consoles import Page, Surfer, console_of

from cometmq.cli.main import root
from cometmq.console.options import ConsoleOptions
from cometmq.console.origins import origin_of
from cometmq.console.security.passwords import ConsoleUsers, Role
from cometmq.testing.sync import SyncCluster

PASSWORD = "correct horse battery"


@pytest.fixture(scope="module")
def cluster() -> Iterator[SyncCluster]:
    with SyncCluster() as running:
        yield running


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("people")
    ConsoleUsers(ConsoleOptions(namesrv="", data=place).users_file).put("vera", Role.VIEWER, PASSWORD)
    return place


@pytest.fixture(scope="module")
def plain(cluster: SyncCluster, data: Path) -> Iterator[str]:
    """A console for other machines, which was told nothing of the proxy."""
    with console_of(cluster, data, host="0.0.0.0") as server:
        yield f"http://127.0.0.1:{server.console.port}"


@pytest.fixture(scope="module")
def told(cluster: SyncCluster, data: Path) -> Iterator[str]:
    """A console on this machine that knows its outer addresses."""
    urls = tuple(filter(None, map(origin_of, ("https://mq.example.com", "http://10.0.0.5:8443"))))
    with console_of(cluster, data, urls=urls) as server:
        yield server.url


def login(url: str, **headers: str) -> Page:
    surfer = Surfer(url)
    fields = {"token": surfer.token, "name": "vera", "password": PASSWORD}
    body = urlencode(fields).encode()
    return surfer.ask("POST", "/login", body, Content_Type="application/x-www-form-urlencoded", **headers)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("https://mq.example.com", "mq.example.com"),
        ("https://mq.example.com", "mq.example.com:443"),  # nginx: $host:$server_port
        ("http://mq.example.com", "mq.example.com:80"),
        ("https://mq.example.com:8443", "mq.example.com:8443"),
        ("https://mq.example.com", "MQ.Example.COM."),
        ("http://[2001:db8::1]:8080", "[2001:db8::1]:8080"),
    ],
)
def test_a_form_is_taken_when_origin_and_host_are_the_same_address(plain: str, origin: str, host: str) -> None:
    assert login(plain, Origin=origin, Host=host).status == 303


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("https://mq.example.com", "127.0.0.1:8080"),  # the proxy did not forward the header
        ("https://mq.example.com", "mq.example.com:8443"),  # another port is another site's
        ("https://mq.example.com", "mq.example.com:80"),
        ("https://mq.example.com.evil.example", "mq.example.com"),
        ("null", "mq.example.com"),
        ("https://mq.example.com/", "mq.example.com:x"),
        ("https://[::1", "[::1"),
        ("ftp://mq.example.com", "mq.example.com"),
        ("", ""),
    ],
)
def test_a_form_from_another_address_is_refused_with_both_and_the_next_step(plain: str, origin: str, host: str) -> None:
    refused = login(plain, Origin=origin, Host=host)
    assert refused.status == 403
    assert "nothing was changed" in refused.words
    assert origin in refused.words
    assert host in refused.words
    assert "--url" in refused.words


def test_a_browser_that_compared_the_addresses_itself_is_believed_behind_any_proxy(plain: str) -> None:
    there = {"Origin": "https://mq.example.com", "Host": "127.0.0.1:8080"}
    assert login(plain, **there, Sec_Fetch_Site="same-origin").status == 303
    for site in ("cross-site", "same-site", "else"):
        assert login(plain, **there, Sec_Fetch_Site=site).status == 403


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "mq.example.com:443", "mq.example.com"])
@pytest.mark.parametrize("origin", ["https://mq.example.com", "http://10.0.0.5:8443", "https://mq.example.com:443"])
def test_a_console_that_knows_its_outer_address_takes_forms_from_it(told: str, origin: str, host: str) -> None:
    assert login(told, Origin=origin, Host=host).status == 303


def test_a_console_that_knows_its_outer_address_refuses_other_names(told: str) -> None:
    assert login(told, Origin="https://evil.example", Host="mq.example.com").status == 403
    refused = login(told, Origin="https://rebound.example", Host="rebound.example")
    assert refused.status == 421
    assert "--url" in refused.words


def test_cookies_are_for_https_alone_where_all_outer_addresses_are(cluster: SyncCluster, data: Path, told: str) -> None:
    assert "secure" not in Surfer(told).get("/login").headers["set-cookie"].lower()
    url = origin_of("https://mq.example.com")
    assert url is not None
    with console_of(cluster, data, urls=(url,)) as server:
        assert "secure" in Surfer(server.url).get("/login").headers["set-cookie"].lower()


@pytest.mark.parametrize("command", [["console", "--url"], ["serve", "--console-url"]])
@pytest.mark.parametrize("url", ["mq.example.com", "https://example.com/mq", "https://u:p@example.com", "https://a b"])
def test_an_address_that_no_browser_would_send_is_wrong_use(command: list[str], url: str) -> None:
    done = CliRunner().invoke(root, [*command, url])
    assert done.exit_code == 2
    assert "is not the address of a console" in " ".join(done.output.split())
