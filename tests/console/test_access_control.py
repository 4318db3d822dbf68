"""The page about users, policies and quotas of the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers.consoles import Surfer, console_of

from cometmq.auth.policies import EntryInfo, PolicyInfo
from cometmq.auth.user_admin import UserInfo
from cometmq.client.admin import Admin
from cometmq.console.broker_audit import audit_files, newest_entries
from cometmq.remoting.admin_headers import PutQuotaRequestHeader
from cometmq.remoting.security import Security
from cometmq.remoting.signing import Credentials
from cometmq.testing.sync import SyncCluster

ROOT = Credentials("root", "secret-of-root")
KEYS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"root","password":"secret-of-root"}',
    "auditLogEnable": "true",
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
        logs = (Path(cluster.cluster.brokers[0].config.store_path_root_dir),)
        with console_of(cluster, data, security=Security(ROOT), audit_logs=logs) as server:
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


def test_a_user_is_created_changed_and_deleted_and_their_password_is_shown_nowhere(root: Surfer) -> None:
    secret = "first-secret-9"
    plan = root.post("/access/users/create", name="carol", type="Normal", password=secret, again=secret)
    assert 'name="password"' in plan.text, "the plan asks for it"
    assert secret not in plan.text
    refused = root.confirm("/access/users/create", name="carol", type="Normal", password=secret, again="other")
    assert "The passwords differ" in refused.words
    assert secret not in refused.text
    assert "carol" not in root.get("/access").words, "nothing was made"
    page = root.change("/access/users/create", name="carol", type="Normal", password=secret, again=secret)
    assert "User carol is created." in page.words
    assert root.post("/access/users/create", name="carol").status == 400
    assert "carol Normal enable" in page.words
    assert "Normal Super" in root.post("/access/users/carol/alter", type="Super").words
    assert "carol Normal" in root.get("/access").words, "a plan changes nothing"
    new = "second-secret-9"
    page = root.change("/access/users/carol/alter", status="disable", new_password="yes", password=new, again=new)
    assert "carol Normal disable" in page.words
    assert root.post("/access/users/carol/alter", status="disable").status == 400
    assert root.post("/access/users/carol/alter", status="gone").status == 400
    assert "The name does not match" in root.confirm("/access/users/carol/delete", typed="caro").words
    page = root.change("/access/users/carol/delete", typed="carol")
    assert "carol" not in page.words.partition("is deleted.")[2]
    assert root.audit("user.create", "carol")[0]["by"] == "root"
    assert root.audit("user.delete", "carol")[0]["outcome"] == "done"
    assert root.audit("user.alter", "carol")[0]["details"] == {"State": "enable -> disable", "password": "new"}
    log = (root.data / "audit.log").read_text()
    assert secret not in log
    assert new not in log


def test_a_policy_is_created_changed_and_deleted(root: Surfer) -> None:
    wish = {"user": "alice", "resource": "Group:bill*", "decision": "Allow", "kind": "Custom"}
    page = root.change("/access/policies/put", **wish, actions=["Sub", "Get"], sources="10.0.0.0/8, 192.168.1.7")
    assert "alice Group:bill* Sub, Get 10.0.0.0/8, 192.168.1.7 Allow Custom" in page.words
    form = root.get("/access/policies/new?user=alice&resource=Group:bill*&kind=Custom").text
    assert 'value="Sub" checked' in form
    assert 'value="Pub" checked' not in form
    plan = root.post("/access/policies/put", **(wish | {"decision": "Deny"}), actions="All")
    assert "Allow Sub, Get ← 10.0.0.0/8, 192.168.1.7 Deny All" in plan.words
    page = root.change("/access/policies/put", **(wish | {"decision": "Deny"}), actions="All")
    assert "alice Group:bill* All – Deny Custom" in page.words
    chosen = {name: wish[name] for name in ("user", "resource", "kind")}
    page = root.change("/access/policies/delete", typed="Group:bill*", **chosen)
    assert "alice Group:bill*" not in page.words
    assert root.post("/access/policies/delete", **chosen).status == 404
    assert root.audit("policy.delete", "alice Group:bill*")[0]["details"]["before"] == "Deny All"


@pytest.mark.parametrize(
    "wrong", [{"resource": "bill"}, {"actions": "Fly"}, {"sources": "nowhere"}, {"decision": ""}, {"kind": "Odd"}]
)
def test_a_policy_that_no_broker_takes_is_refused_before_the_plan(root: Surfer, wrong: dict[str, str]) -> None:
    wish = {"user": "alice", "resource": "Topic:a", "decision": "Allow", "kind": "Custom", "actions": "Pub"}
    assert root.post("/access/policies/put", **wish).status == 200
    assert root.post("/access/policies/put", **(wish | wrong)).status == 400


def test_a_quota_is_set_changed_and_deleted(root: Surfer) -> None:
    page = root.change("/access/quotas/put", subject="group:reports", messagesOut=70, connections=3)
    assert "messagesOut: – / 70, connections: – / 3" in page.words
    plan = root.post("/access/quotas/put", subject="group:reports", messagesOut=80, connections=-1)
    assert "messagesOut 70 80" in plan.words
    page = root.change("/access/quotas/put", subject="group:reports", messagesOut=80, connections=-1)
    assert "messagesOut: – / 80" in page.words
    assert "connections: –" not in page.words
    assert root.post("/access/quotas/put", subject="group:reports").status == 400
    assert root.post("/access/quotas/put", subject="reports", messagesOut=1).status == 400
    page = root.change("/access/quotas/delete", subject="group:reports", typed="group:reports")
    assert "/ 80" not in page.words
    assert root.post("/access/quotas/delete", subject="group:reports").status == 404
    assert root.audit("quota.delete", "group:reports")[0]["outcome"] == "done"


def test_the_audit_log_of_brokers_is_shown_to_those_who_may_read_users(root: Surfer, surfer: Surfer) -> None:
    page = root.get("/changes/brokers?q=create_user")
    assert "root" in page.words
    assert "AUTH_CREATE_USER" in page.words
    assert "secret-of" not in root.get("/changes/brokers").words
    assert (
        "No entry in the newest part of the log matches" in root.get("/changes/brokers?q=create_user&denied=yes").words
    )
    alice = Surfer(root.url)
    login = alice.get("/login")
    assert alice.post("/login", login, name="alice", password="secret-of-alice").status == 303
    assert alice.get("/changes/brokers").status == 403
    assert Surfer(root.url).get("/changes/brokers").status == 303
    assert "auditLogEnable=true" in surfer.get("/changes/brokers").words


def test_damaged_lines_of_an_audit_log_hide_no_others(tmp_path: Path) -> None:
    entry = '{"time": "2026-01-01T00:00:00.000Z", "event": "admin", "account": "ann", "resources": 7}'
    (tmp_path / "audit.log").write_text(f'\x00no\n{entry}\n{{"time": "never"}}\n{{"time": 5}}\n[]\n{{"half')
    assert [line.account for line in newest_entries(audit_files([tmp_path]), "", denied=False)] == ["ann"]
    assert audit_files([tmp_path / "none"]) == []


def test_a_reader_is_offered_no_changes_of_access(reader: Surfer) -> None:
    assert "/access/quotas/new" not in reader.get("/access").text
    assert reader.post("/access/quotas/put", subject="group:a", topics=1).status == 403


def test_a_cluster_without_users_says_how_to_get_them(surfer: Surfer) -> None:
    page = surfer.get("/access")
    assert page.status == 200
    assert "authenticationEnabled=true" in page.words


def test_accounts_of_acl_1_are_listed_without_secrets_and_tested(tmp_path: Path) -> None:
    operators = Security(Credentials("operators", "secret-of-operators"))
    billing = {"accessKey": "billing", "secretKey": "secret-of-billing", "topicPerms": ["Orders=PUB"]}
    accounts: list[dict[str, object]] = [
        {"accessKey": "operators", "secretKey": "secret-of-operators", "admin": True},
        {**billing, "whiteRemoteAddress": "10.0.0.7"},
    ]
    with (
        SyncCluster(accounts=accounts) as cluster,
        console_of(cluster, tmp_path / "console", security=operators) as server,
    ):
        surfer = Surfer(server.url)
        login = surfer.get("/login")
        assert surfer.post("/login", login, name="operators", password="secret-of-operators").status == 303
        page = surfer.get("/access")
        assert "billing no – – Orders=PUB – 10.0.0.7" in page.words
        assert "secret-of" not in page.text
        assert "/access/users/new" not in page.text
        test = "/access?user=billing&resource=Topic:Orders"
        assert "Allowed : plain_acl.yml allows it" in surfer.get(f"{test}&action=Pub").words
        assert "Denied : No default permission for topic:Orders" in surfer.get(f"{test}&action=Sub").words
        assert "Allowed : requests from this" in surfer.get(f"{test}&action=Sub&from=10.0.0.7").words
        assert surfer.get("/access?user=nobody&action=Sub&resource=Topic:Orders").status == 404
