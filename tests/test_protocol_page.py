"""docs/protocol.md says what the handlers of request codes say, and brokers and nameservers have these handlers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.broker.conftest import small_config

import cometmq.broker.limits
from cometmq.broker.admin.failover import FailoverAdmin
from cometmq.broker.controller import Broker
from cometmq.broker.replication.copies.account_copy import SetAccountsProcessor
from cometmq.broker.replication.copies.key_copy import SetKeysProcessor
from cometmq.broker.replication.copies.user_copy import SetUsersProcessor
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer
from cometmq.remoting.processors import handlers

ROOT = Path(__file__).resolve().parent.parent

USERS: dict[str, Any] = {
    "authentication_enabled": True,
    "init_authentication_user": '{"username":"root","password":"secret-of-root"}',
}


def codes(of: str) -> set[int]:
    """The codes of one table of the page."""
    page = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    table = page.split(f"<!-- codes of {of} -->")[1].split("<!-- end of")[0]
    return {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}


def test_the_page_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "protocol_page"), "--check"],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SLAVE"])
async def test_a_broker_answers_the_codes_of_the_page(tmp_path: Path, role: str) -> None:
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text("accounts: []\n")
    accounts.chmod(0o600)
    answered: set[int] = set()
    for keys in (  # administration of accounts is answered where such accounts are checked
        {"acl_enable": True, "acl_path": str(tmp_path)},
        USERS,
    ):
        broker = Broker(small_config(tmp_path, broker_role=role, broker_id=int(role == "SLAVE"), **keys))
        await broker.start()
        answered |= set(broker.processors.codes())
        await broker.stop()
    assert answered == codes("a broker")
    replaced = {code for code in broker.processors.codes() if _is_of_slaves(broker, code)}
    assert replaced == (codes("a slave") if role == "SLAVE" else set())


def test_a_member_of_a_set_answers_further_codes() -> None:
    parts = (FailoverAdmin, SetAccountsProcessor, SetKeysProcessor, SetUsersProcessor)
    assert {mark.code for part in parts for _, mark in handlers(part)} == codes("a member of a set")
    assert codes("a member of a set").isdisjoint(codes("a broker"))


def _is_of_slaves(broker: Broker, code: int) -> bool:
    processor = broker.processors.get(code)
    assert processor is not None
    return type(getattr(processor.handler, "__self__", None)).__name__ == "Slave"


def test_a_nameserver_answers_the_codes_of_the_page(tmp_path: Path) -> None:
    nameserver = NameServer(NamesrvConfig(kv_config_path=str(tmp_path / "kv.json"), **USERS))
    assert set(nameserver.processors.codes()) == codes("a nameserver")


def test_the_page_has_the_limits_of_the_port_for_slaves() -> None:
    section = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8").split("## The port for slaves")[1]
    rows = {name: int(value.replace(",", "")) for name, value in re.findall(r"^\| `(\w+)` \| ([\d,]+) ", section, re.M)}
    assert len(rows) == 8
    assert rows == {name: getattr(cometmq.broker.limits, name) for name in rows}
