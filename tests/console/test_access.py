"""Who gets in, and what a browser must not do for others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers.consoles import Surfer, console_of

from cometmq.clock import SYSTEM_CLOCK
from cometmq.console.console import ConsoleRefusedError
from cometmq.console.limits import SESSION_IDLE_SECONDS
from cometmq.console.listening import ConsolePortError
from cometmq.console.options import ConsoleOptions
from cometmq.console.security import login_rate
from cometmq.console.security.passwords import ConsoleUsers, Role
from cometmq.console.server import ConsoleServer
from cometmq.testing.sync import SyncCluster

PASSWORD = "correct horse battery"


@pytest.fixture(scope="module")
def cluster() -> Iterator[SyncCluster]:
    with SyncCluster() as running:
        yield running


@pytest.fixture(scope="module")
def secured() -> Iterator[SyncCluster]:
    accounts = [{"accessKey": "alice-app", "secretKey": "alice-secret-1", "defaultTopicPerm": "DENY"}]
    with SyncCluster(accounts=accounts) as running:
        yield running


@pytest.fixture(scope="module")
def people(cluster: SyncCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Surfer]:
    data = tmp_path_factory.mktemp("people")
    users = ConsoleUsers(ConsoleOptions(namesrv="", data=data).users_file)
    users.put("vera", Role.VIEWER, PASSWORD)
    users.put("otto", Role.OPERATOR, PASSWORD)
    with console_of(cluster, data) as server:
        yield Surfer(server.url)


def logged_in(at: Surfer, name: str, password: str = PASSWORD) -> Surfer:
    surfer = Surfer(at.url)
    answer = surfer.post("/login", surfer.get("/login"), name=name, password=password, next="/")
    assert answer.status == 303, answer.words
    return surfer


def test_every_answer_forbids_scripts_and_frames_of_others(people: Surfer) -> None:
    for path in ("/login", "/nowhere", "/static/x", "/healthz"):
        headers = people.get(path).headers
        assert "script-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_pages_have_no_inline_script_style_or_handler(people: Surfer) -> None:
    text = logged_in(people, "vera").get("/").text
    assert "<style" not in text
    assert " style=" not in text
    assert " onclick=" not in text
    assert text.count("<script") == text.count("<script src=") == 4


def test_a_stranger_is_sent_to_the_login_and_back(people: Surfer) -> None:
    surfer = Surfer(people.url)
    answer = surfer.get("/brokers/broker-0/0?x=1")
    assert answer.status == 303
    assert answer.headers["location"] == "/login?next=%2Fbrokers%2Fbroker-0%2F0%3Fx%3D1"
    login = surfer.get(answer.headers["location"])
    done = surfer.post("/login", login, name="vera", password=PASSWORD, next="/brokers/broker-0/0?x=1")
    assert done.headers["location"] == "/brokers/broker-0/0?x=1"
    assert surfer.get(done.headers["location"]).status == 200


@pytest.mark.parametrize("wanted", ["//evil.example/", "https://evil.example/", "/\\evil.example", "javascript:1"])
def test_the_login_leads_to_no_other_site(people: Surfer, wanted: str) -> None:
    surfer = Surfer(people.url)
    answer = surfer.post("/login", surfer.get("/login"), name="vera", password=PASSWORD, next=wanted)
    assert answer.headers["location"] == "/"


def test_a_session_has_a_new_secret_in_a_cookie_that_scripts_and_other_sites_do_not_get(people: Surfer) -> None:
    surfer = Surfer(people.url)
    name = f"cometmq-session-{people.url.rpartition(':')[2]}"
    surfer.cookies[name] = "chosen-by-an-attacker"
    answer = surfer.post("/login", surfer.get("/login"), name="vera", password=PASSWORD)
    cookie = answer.headers["set-cookie"]
    first = surfer.cookies[name]
    assert first != "chosen-by-an-attacker"
    assert "httponly" in cookie.lower()
    assert "samesite=strict" in cookie.lower()
    surfer.post("/login", surfer.get("/login"), name="vera", password=PASSWORD)
    assert surfer.cookies[name] != first
    old = Surfer(people.url, {name: first})
    assert old.get("/").status == 303, "the old secret has ended"
    surfer.post("/logout", surfer.get("/keys"))
    assert surfer.get("/").status == 303


def test_a_session_ends_when_nobody_uses_it(cluster: SyncCluster, tmp_path: Path) -> None:
    ConsoleUsers(ConsoleOptions(namesrv="", data=tmp_path).users_file).put("vera", Role.VIEWER, PASSWORD)
    clock = Later()
    with console_of(cluster, tmp_path, clock=clock) as server:
        surfer = logged_in(Surfer(server.url), "vera")
        assert surfer.get("/keys").status == 200
        clock.later = SESSION_IDLE_SECONDS + 1
        assert surfer.get("/keys").status == 303


class Later(type(SYSTEM_CLOCK)):  # type: ignore[misc]
    """Real time, and some seconds more."""

    later = 0.0

    def monotonic(self) -> float:
        return float(super().monotonic() + self.later)


def test_forms_of_other_sites_change_nothing(people: Surfer) -> None:
    surfer = logged_in(people, "otto")
    token = surfer.token
    body = f"token={token}".encode()
    kind = {"Content_Type": "application/x-www-form-urlencoded"}
    foreign = surfer.ask("POST", "/logout", body, Origin="https://evil.example", **kind)
    assert foreign.status == 403
    assert surfer.ask("POST", "/logout", body, Sec_Fetch_Site="cross-site", **kind).status == 403
    assert surfer.ask("POST", "/logout", b"token=" + b"0" * 64, **kind).status == 403
    assert surfer.ask("POST", "/logout", b"", **kind).status == 403
    stranger = Surfer(people.url)
    stranger.get("/login")
    stranger.cookies |= {name: value for name, value in surfer.cookies.items() if "session" in name}
    assert stranger.ask("POST", "/logout", body, **kind).status == 403, "a token belongs to its own browser"
    assert surfer.get("/keys").status == 200, "nobody is logged out"


def test_a_link_from_another_site_asks_again_with_the_cookies(people: Surfer) -> None:
    surfer = Surfer(people.url)
    answer = surfer.get("/keys", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")
    assert 'http-equiv="refresh"' in answer.text
    assert surfer.get("/keys", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors").status == 403


def test_a_storm_of_logins_must_wait_and_is_in_the_audit_log(
    cluster: SyncCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_rate, "LOGINS_PER_MINUTE", 3)
    ConsoleUsers(ConsoleOptions(namesrv="", data=tmp_path).users_file).put("vera", Role.VIEWER, PASSWORD)
    with console_of(cluster, tmp_path) as server:
        surfer = Surfer(server.url)
        page = surfer.get("/login")
        answers = [surfer.post("/login", page, name="vera", password=f"wrong {number}") for number in range(5)]
        assert [answer.status for answer in answers] == [401] * 3 + [429] * 2
        assert int(answers[-1].headers["retry-after"]) <= 61
        assert "try again in" in answers[-1].words
    assert (tmp_path / "audit.log").read_text().count('"outcome":"denied"') == 3


def test_an_account_of_the_cluster_logs_in_and_has_its_own_permissions(secured: SyncCluster, tmp_path: Path) -> None:
    with console_of(secured, tmp_path) as server:
        surfer = Surfer(server.url)
        assert surfer.get("/").headers["location"].startswith("/login")
        wrong = surfer.post("/login", surfer.get("/login"), name="alice-app", password="alice-secret-2")
        assert wrong.status == 401
        assert logged_in(surfer, "alice-app", "alice-secret-1").get("/").status == 200


def test_a_cluster_that_checks_nothing_proves_nobody(people: Surfer) -> None:
    surfer = Surfer(people.url)
    assert surfer.post("/login", surfer.get("/login"), name="anybody", password="anything").status == 401


async def test_a_console_for_other_machines_needs_accounts(tmp_path: Path, cluster: SyncCluster) -> None:
    options = ConsoleOptions(namesrv=cluster.namesrv_address, data=tmp_path, host="0.0.0.0", port=0)
    server = ConsoleServer(options)
    with pytest.raises(ConsoleRefusedError, match="user add"):
        await server.start()
    await asyncio.to_thread(ConsoleUsers(options.users_file).put, "vera", Role.VIEWER, PASSWORD)
    server = ConsoleServer(options)
    await server.start()
    await server.stop()


async def test_a_port_that_is_taken_is_told_in_one_sentence(tmp_path: Path, people: Surfer) -> None:
    port = int(people.url.rpartition(":")[2])
    with pytest.raises(ConsolePortError, match=f"port {port} for the console is in use"):
        await ConsoleServer(ConsoleOptions(namesrv="127.0.0.1:1", data=tmp_path, port=port)).start()


def test_another_name_of_the_host_is_refused_without_a_login(cluster: SyncCluster, tmp_path: Path) -> None:
    with console_of(cluster, tmp_path) as server:
        assert Surfer(server.url).get("/", Host="rebound.example:80").status == 421
        assert Surfer(server.url).get("/", Host=f"localhost:{server.console.port}").status == 200


def test_requests_that_are_too_large_get_a_clear_answer(people: Surfer) -> None:
    assert people.get("/login?next=" + "a" * 9_000).status == 414
    assert people.ask("POST", "/login", b"", Content_Length=str(10**9)).status == 413


def test_passwords_are_kept_as_argon2_in_a_file_for_the_console_alone(tmp_path: Path) -> None:
    users = ConsoleUsers(tmp_path / "users.json")
    users.put("vera", Role.VIEWER, PASSWORD)
    written = (tmp_path / "users.json").read_text()
    assert PASSWORD not in written
    assert json.loads(written)[0]["password_hash"].startswith("$argon2id$")
    assert (tmp_path / "users.json").stat().st_mode & 0o077 == 0


def test_the_console_of_a_cluster_that_is_away_says_what_to_do(cluster: SyncCluster, tmp_path: Path) -> None:
    with console_of(cluster, tmp_path, namesrv="127.0.0.1:1") as server:
        page = Surfer(server.url).get("/")
        assert page.status == 200
        assert "cometmq serve" in page.words
