"""The page about users, policies and quotas of the cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.helpers.consoles import Surfer, console_of

from cometmq.auth.policies import EntryInfo, PolicyInfo
from cometmq.auth.user_admin import UserInfo
from cometmq.client.admin import Admin
from cometmq.remoting.admin_headers import PutQuotaRequestHeader
from cometmq.remoting.security import Security
from cometmq.remoting.signing import Credentials
from cometmq.testing.sync import SyncCluster

ROOT = Credentials("root", "secret-of-root")
KEYS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"root","password":"secret-of-root"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"servers","secretKey":"secret-of-servers"}',
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Surfer]:
    """The administrator of a cluster where ``alice`` may publish to ``Ord*`` from one network."""
    with SyncCluster(broker_keys=KEYS) as cluster:

        async def fill() -> None:
            async with Admin(cluster.namesrv_address, security=Security(ROOT)) as admin:
                await admin.create_user(UserInfo("alice", "secret-of-alice", "Normal"))
                entries = [
                    EntryInfo("Topic:Ord*", ["Pub"], ["10.0.0.0/8"], "Allow"),
                    EntryInfo("Topic:Orders-old", ["All"], [], "Deny"),
                ]
                await admin.put_policies("alice", [PolicyInfo("Custom", entries)])
                await admin.put_quota(PutQuotaRequestHeader("account:alice", 500))

        cluster.call(fill())
        data = tmp_path_factory.mktemp("console")
        with console_of(cluster, data, security=Security(ROOT)) as server:
            surfer = Surfer(server.url, data=data)
            assert surfer.get("/access").status == 303, "nobody sees users without a login"
            login = surfer.get("/login")
            assert surfer.post("/login", login, name="root", password="secret-of-root").status == 303
            yield surfer


def test_users_policies_and_quotas_are_listed_without_secrets(root: Surfer) -> None:
    page = root.get("/access")
    assert "alice Normal" in page.words
    assert "alice Topic:Ord* Pub 10.0.0.0/8 Allow Custom" in page.words
    assert "account:alice" in page.words
    assert "500" in page.words
    assert "secret-of" not in page.text
    assert "Topic:Ord*" not in root.get("/access?q=root").words


@pytest.mark.parametrize(
    ("query", "answer"),
    [
        ("action=Pub&resource=Topic:Orders&from=10.1.2.3", "Allowed : Allow on Topic:Ord*"),
        ("action=Pub&resource=Topic:Orders", "Denied : no policy matches"),
        ("action=Sub&resource=Topic:Orders&from=10.1.2.3", "Denied : no policy matches"),
        ("action=Pub&resource=Topic:Orders-old&from=10.1.2.3", "Denied : Deny on Topic:Orders-old"),
    ],
)
def test_the_tester_says_what_a_user_may_do_and_why(root: Surfer, query: str, answer: str) -> None:
    assert answer in root.get(f"/access?user=alice&{query}").words


@pytest.mark.parametrize(
    "query", ["action=Fly&resource=Topic:a", "action=Pub&resource=a", "action=Pub&resource=Topic:a&from=x"]
)
def test_a_test_that_makes_no_sense_is_refused_with_the_reason(root: Surfer, query: str) -> None:
    assert root.get(f"/access?user=alice&{query}").status == 400


def test_a_cluster_without_users_says_how_to_get_them(surfer: Surfer) -> None:
    page = surfer.get("/access")
    assert page.status == 200
    assert "authenticationEnabled=true" in page.words
