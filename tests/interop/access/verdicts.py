"""Generated accounts of ACL 1.0 and requests of them, and the verdicts of a server."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from tests.interop.access.probes import Probe, kinds, secret, signed

from cometmq.auth.yaml_file import dump_yaml
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import (
    Header,
)

TOPICS: Final = tuple(f"Verdict{n}" for n in range(4))
GROUPS: Final = tuple(f"verdicts{n}" for n in range(4))
PERMISSIONS: Final = ("DENY", "PUB", "SUB", "PUB|SUB", "SUB|PUB", "ANY", " PUB ", "pub")
WHITE: Final = (None, "", "10.0.0.*", "127.0.0.1", "127.0.0.1-9", "127.0.0.{2,3}", "10.0.0.1,127.0.0.1", "127.0.*.*")
ACCOUNTS: Final = 120


def accounts_file(seed: int) -> bytes:
    """A file of generated accounts, named ``verdict-0`` and so on."""
    dice = random.Random(seed)
    accounts: list[dict[str, Any]] = []
    for number in range(ACCOUNTS):
        name = f"verdict-{number}"
        account: dict[str, Any] = {"accessKey": name, "secretKey": secret(name), "admin": dice.random() < 0.25}
        for key in ("defaultTopicPerm", "defaultGroupPerm"):
            if dice.random() < 0.7:
                account[key] = dice.choice(PERMISSIONS)
        if dice.random() < 0.7:
            names = [*TOPICS, "%RETRY%" + GROUPS[0], "RMQ_SYS_TRACE_TOPIC"]
            account["topicPerms"] = [f"{topic}={dice.choice(PERMISSIONS)}" for topic in names if dice.random() < 0.5]
        if dice.random() < 0.7:
            account["groupPerms"] = [f"{group} = {dice.choice(PERMISSIONS)}" for group in GROUPS if dice.random() < 0.5]
        if dice.random() < 0.2:
            account["whiteRemoteAddress"] = dice.choice(WHITE)
        accounts.append(account)
    return dump_yaml({"accounts": accounts})


def _group(dice: random.Random) -> tuple[int, Header | None, bytes]:
    body = {"groupName": dice.choice(GROUPS), "retryQueueNums": 1, "retryMaxTimes": 16, "consumeEnable": True}
    return RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, msgspec.json.encode(body)


_KINDS: Final = (*kinds((*TOPICS, "RMQ_SYS_TRACE_TOPIC"), GROUPS), _group)


def probes(seed: int, count: int) -> Iterator[Probe]:
    """Requests of known and unknown accounts."""
    dice = random.Random(seed)
    for _ in range(count):
        yield signed(dice, f"verdict-{dice.randrange(ACCOUNTS + 5)}", _KINDS)


def denial(answer: RemotingCommand) -> tuple[int, str] | None:
    """The code and the words of a denial, as clients look for them; ``None`` if the request was handled."""
    remark = answer.remark or ""
    if "AclException" not in remark:
        return None
    return answer.code, remark.split(", ")[0] if "request code" not in remark else ", ".join(remark.split(", ")[:2])
