"""Generated users and policies of ACL 2.0, requests of them, and changes of both, for two servers side by side."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.interop.access.probes import Probe, kinds, secret, signed

from cometmq.remoting.admin_headers import (
    CreateAclRequestHeader,
    CreateUserRequestHeader,
    DeleteAclRequestHeader,
    DeleteUserRequestHeader,
    GetAclRequestHeader,
    GetUserRequestHeader,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
    UpdateAclRequestHeader,
    UpdateUserRequestHeader,
)
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import (
    Header,
    QueryConsumerOffsetRequestHeader,
)
from cometmq.remoting.signing import Credentials

ROOT: Final = Credentials("root", "secret-of-root")
KEYS: Final[Mapping[str, str]] = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"root","password":"secret-of-root"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"servers","secretKey":"secret-of-servers"}',
}
_AUTH: Final = "org.apache.rocketmq.auth"
APACHE_KEYS: Final[Mapping[str, str]] = {
    **KEYS,
    "authenticationProvider": f"{_AUTH}.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": f"{_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    "authorizationProvider": f"{_AUTH}.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": f"{_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
}
TOPICS: Final = ("Orders", "OrdersPaid", "OrdersPaidLate", "Prices")
GROUPS: Final = ("billing", "billing2", "audit")
RESOURCES: Final = (
    *(f"Topic:{name}" for name in (*TOPICS, "Ord*", "OrdersPaid*", "P*", "*")),
    *(f"Group:{name}" for name in (*GROUPS, "bill*", "b*", "*")),
    "Cluster:DefaultCluster",
    "Cluster:*",
    "Cluster:Other",
    "topic:orders",
    "*",
)
ACTIONS: Final = ("Pub", "Sub", "Create", "Update", "Delete", "Get", "List", "All", "All", "All", "all", "pub", "SUB")
SOURCES: Final[tuple[list[str], ...]] = (
    [],
    [],
    [],
    ["127.0.0.1"],
    ["10.0.0.1"],
    ["127.0.0.0/8"],
    ["10.0.0.0/8", "127.0.0.1"],
    ["::1"],
)
USERS: Final = 80


def entry(dice: random.Random) -> dict[str, Any]:
    """A valid entry of a policy."""
    return {
        "resource": dice.choice(RESOURCES),
        "actions": dice.sample(ACTIONS, dice.choice((1, 1, 2, 3))),
        "sourceIps": dice.choice(SOURCES),
        "decision": dice.choice(("Allow", "Allow", "Allow", "Deny", "deny")),
    }


def acl(name: str, dice: random.Random, entries: int) -> bytes:
    """The body of a request that makes policies of a user."""
    policies = [{"policyType": "CUSTOM", "entries": [entry(dice) for _ in range(entries)]}]
    if dice.random() < 0.5:
        policies.append({"policyType": "DEFAULT", "entries": [entry(dice) for _ in range(dice.randrange(1, 4))]})
    return json.dumps({"subject": f"User:{name}", "policies": policies}).encode()


def setup(seed: int) -> Iterator[Probe]:
    """Requests that make the generated users, named ``user-0`` and so on, and their policies."""
    dice = random.Random(seed)
    for number in range(USERS):
        name = f"user-{number}"
        kind = "Super" if dice.random() < 0.05 else "Normal"
        info = {"username": name, "password": secret(name), "userType": kind}
        yield _as_root(RequestCode.AUTH_CREATE_USER, CreateUserRequestHeader(name), json.dumps(info).encode())
        if dice.random() < 0.95:
            body = acl(name, dice, dice.randrange(1, 9))
            yield _as_root(RequestCode.AUTH_CREATE_ACL, CreateAclRequestHeader(f"User:{name}"), body)
        if dice.random() < 0.05:
            body = json.dumps({"username": name, "userStatus": "disable"}).encode()
            yield _as_root(RequestCode.AUTH_UPDATE_USER, UpdateUserRequestHeader(name), body)


def probes(seed: int, count: int) -> Iterator[Probe]:
    """Requests of known and unknown users."""
    dice = random.Random(seed)
    for _ in range(count):
        yield signed(dice, f"user-{dice.randrange(USERS + 3)}", _KINDS)


def verdict(answer: RemotingCommand) -> tuple[int, str] | None:
    """The code and the words of a denial, without our next step; ``None`` if the request was handled."""
    remark = answer.remark or ""
    if answer.code != ResponseCode.NO_PERMISSION:
        return None
    return answer.code, remark.split(" (")[0]


# --- requests ---------------------------------------------------------------------------------
def _as_root(code: int, header: Header, body: bytes = b"") -> Probe:
    return Probe(ROOT, code, header, body)


_KINDS: Final = (
    *kinds(TOPICS, GROUPS),
    lambda dice: (
        RequestCode.QUERY_CONSUMER_OFFSET,
        QueryConsumerOffsetRequestHeader(dice.choice(GROUPS), dice.choice(TOPICS), 0),
        b"",
    ),
    lambda dice: (RequestCode.AUTH_LIST_USER, ListUsersRequestHeader(""), b""),
    lambda dice: (RequestCode.AUTH_GET_ACL, GetAclRequestHeader("User:user-1"), b""),
)


# --- changes ----------------------------------------------------------------------------------
_NAMES: Final = ("alice", "bob", "carol", "dave")
_OTHERS: Final = frozenset({"root", "servers", *(f"user-{number}" for number in range(USERS))})
_NAMED: Final = (*_NAMES, *_NAMES, *_NAMES, "nobody", "", "  ")
_SUBJECTS: Final = (*(f"User:{name}" for name in _NAMED), "user:alice", "alice", "Role:alice")
_KINDS_OF_USER: Final = ("Normal", "Super", "normal", "SUPER", None, None)
_STATES: Final = ("enable", "disable", "ENABLE", None, None)
_BAD: Final[tuple[dict[str, Any], ...]] = (
    {"resource": "Nothing:x"},
    {"resource": ""},
    {"resource": None},
    {"resource": "**"},
    {"actions": []},
    {"actions": ["Any"]},
    {"sourceIps": ["somewhere"]},
    {"sourceIps": [""]},
    {"sourceIps": ["10.0.0.0/64"]},
    {"sourceIps": None},
    {"decision": "Perhaps"},
    {"decision": None},
)


def changes(seed: int, count: int) -> Iterator[Probe]:
    """Requests that make, change, delete and show users and policies, some of them wrong, all by a super user."""
    dice = random.Random(seed)
    for _ in range(count):
        yield _as_root(*dice.choice(_CHANGES)(dice))


def _user(dice: random.Random) -> bytes:
    info = {
        "username": dice.choice(_NAMED),
        "password": dice.choice(("some-password", "another-password", "", None)),
        "userType": dice.choice(_KINDS_OF_USER),
        "userStatus": dice.choice(_STATES),
    }
    return json.dumps({key: value for key, value in info.items() if value is not None}).encode()


def _acl(dice: random.Random) -> bytes:
    def policy(kind: str | None) -> dict[str, Any]:
        entries = [entry(dice) | {"resource": one} for one in dice.sample(RESOURCES, dice.choice((1, 1, 2, 3)))]
        if dice.random() < 0.25:
            entries[-1] |= dice.choice(_BAD)
        if dice.random() < 0.05:
            return {"policyType": kind, "entries": dice.choice(([], None))}
        return {"policyType": kind, "entries": entries}

    kinds = [dice.choice(("CUSTOM", "Custom", None)), dice.choice(("DEFAULT", "Default"))]
    policies = [policy(kind) for kind in dice.sample(kinds, dice.choice((0, 1, 1, 2)))]
    return json.dumps({"subject": dice.choice((*_SUBJECTS, None)), "policies": policies}).encode()


_CHANGES: Final = (
    lambda dice: (RequestCode.AUTH_CREATE_USER, CreateUserRequestHeader(dice.choice(_NAMED)), _user(dice)),
    lambda dice: (RequestCode.AUTH_CREATE_USER, CreateUserRequestHeader(dice.choice(_NAMED)), _user(dice)),
    lambda dice: (RequestCode.AUTH_UPDATE_USER, UpdateUserRequestHeader(dice.choice(_NAMED)), _user(dice)),
    lambda dice: (RequestCode.AUTH_DELETE_USER, DeleteUserRequestHeader(dice.choice(_NAMED)), b""),
    lambda dice: (RequestCode.AUTH_GET_USER, GetUserRequestHeader(dice.choice(_NAMED)), b""),
    lambda dice: (RequestCode.AUTH_LIST_USER, ListUsersRequestHeader(dice.choice((None, "", "a", "o", "zz"))), b""),
    lambda dice: (RequestCode.AUTH_CREATE_ACL, CreateAclRequestHeader(dice.choice(_SUBJECTS)), _acl(dice)),
    lambda dice: (RequestCode.AUTH_CREATE_ACL, CreateAclRequestHeader(dice.choice(_SUBJECTS)), _acl(dice)),
    lambda dice: (RequestCode.AUTH_UPDATE_ACL, UpdateAclRequestHeader(dice.choice(_SUBJECTS)), _acl(dice)),
    lambda dice: (
        RequestCode.AUTH_DELETE_ACL,
        DeleteAclRequestHeader(
            dice.choice(_SUBJECTS),
            dice.choice((None, "CUSTOM", "Default")),
            dice.choice((None, "", *RESOURCES)),
        ),
        b"",
    ),
    lambda dice: (RequestCode.AUTH_GET_ACL, GetAclRequestHeader(dice.choice(_SUBJECTS)), b""),
    lambda dice: (
        RequestCode.AUTH_LIST_ACL,
        ListAclsRequestHeader(dice.choice((None, "", "alice", "User", "zz")), dice.choice((None, "", "Topic", "Pa"))),
        b"",
    ),
)


@dataclass(frozen=True)
class Shown:
    """The parts of an answer that must be equal."""

    code: int
    words: str
    body: Any

    @classmethod
    def of(cls, answer: RemotingCommand) -> Shown:
        """Leave out next steps, Java classes, passwords, users of other tests, and the order of what has none."""
        words = "" if answer.code == ResponseCode.SUCCESS else (answer.remark or "")
        words = words.removeprefix(f"{_AUTH}.authorization.exception.AuthorizationException: ")
        words = words.split(" (")[0].split(", org.apache")[0]
        if words.startswith("The resource is null."):
            words = "The resource is null."
        return cls(answer.code, words, _comparable(json.loads(answer.body or b"null")) or None)


def _comparable(part: Any) -> Any:
    if isinstance(part, dict):
        return {key: _comparable(value) for key, value in part.items() if key != "password"}
    if isinstance(part, list):
        if part and isinstance(part[0], str):
            return list(dict.fromkeys(part))
        mine = [one for one in part if one.get("username", one.get("subject", "")).removeprefix("User:") not in _OTHERS]
        return sorted(map(_comparable, mine), key=lambda one: json.dumps(one, sort_keys=True))
    return part
