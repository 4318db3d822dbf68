from __future__ import annotations

from typing import Any

import pytest

from cometmq.auth.model import AuthError
from cometmq.auth.plain import PlainAccount, read_account
from cometmq.remoting.permissions import EVERY, Action, Kind, Need, on_group, on_topic

GET, PUB, SUB = Action.GET, Action.PUB, Action.SUB
CLUSTER = Need(Kind.CLUSTER, "", (GET,))


def account(**keys: Any) -> PlainAccount:
    return read_account({"accessKey": "billing", "secretKey": "12345678", **keys})


def allowed(of: PlainAccount, *needs: Need) -> list[bool]:
    return [of.refusal(need, 10) is None for need in needs]


def test_a_listed_name_counts_before_the_default() -> None:
    billing = account(
        defaultTopicPerm="PUB", defaultGroupPerm="SUB", topicPerms=["Orders=SUB", "Closed=DENY"], groupPerms=["g=DENY"]
    )
    assert allowed(billing, on_topic("Orders", SUB), on_topic("Orders", PUB), on_topic("Other", PUB)) == [
        True,
        False,
        True,
    ]
    assert allowed(billing, on_topic("Closed", PUB), on_topic("Other", SUB), on_topic("Other", SUB, PUB)) == [
        False,
        False,
        True,
    ]
    assert allowed(billing, on_group("g", SUB), on_group("h", SUB)) == [False, True]


def test_without_permissions_everything_is_denied_except_traces() -> None:
    billing = account()
    assert allowed(billing, on_topic("T", PUB), on_topic("T", GET), on_group("g", SUB), CLUSTER) == [False] * 4
    assert allowed(billing, on_topic("RMQ_SYS_TRACE_TOPIC", PUB), on_topic("RMQ_SYS_TRACE_TOPIC", SUB)) == [True, False]


def test_topics_of_retries_and_dead_letters_belong_to_their_group() -> None:
    billing = account(defaultTopicPerm="PUB|SUB", groupPerms=["mine=SUB"])
    for action in (PUB, SUB, GET):
        assert allowed(billing, on_topic("%RETRY%mine", action), on_topic("%DLQ%mine", action)) == [True, True]
        assert allowed(billing, on_topic("%RETRY%other", action), on_topic("%DLQ%other", action)) == [False, False]
    listed = account(topicPerms=["%DLQ%other=SUB", "%RETRY%third=SUB"])
    assert allowed(listed, on_topic("%DLQ%other", SUB), on_topic("%DLQ%other", PUB)) == [True, False]
    assert allowed(listed, on_group("third", SUB), on_topic("%RETRY%third", PUB)) == [True, True]


def test_topics_in_which_messages_of_others_wait_need_an_admin() -> None:
    needs = [on_topic(name, SUB) for name in ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer")]
    assert allowed(account(defaultTopicPerm="PUB|SUB"), *needs) == [False] * 3
    assert allowed(account(admin=True), *needs) == [True] * 3
    assert allowed(account(topicPerms=["SCHEDULE_TOPIC_XXXX=SUB"]), needs[0]) == [True]


def test_what_changes_or_lists_something_needs_an_admin() -> None:
    needs = [
        CLUSTER,
        Need(Kind.TOPIC, EVERY, (Action.LIST,)),
        on_topic("T", Action.CREATE),
        on_topic("T", Action.DELETE),
        on_group("g", Action.UPDATE),
    ]
    everything = {"defaultTopicPerm": "PUB|SUB", "defaultGroupPerm": "PUB|SUB"}
    assert allowed(account(**everything), *needs) == [False] * 5
    assert allowed(account(admin=True, **everything), *needs) == [True] * 5
    refused = account().refusal(on_topic("T", Action.CREATE), 17)
    assert refused is not None
    assert refused.message == "Need admin permission for request code=17, but accessKey=billing is not"


def test_an_admin_with_lists_is_bound_by_them_for_messages() -> None:
    assert account(admin=True).is_super
    bound = account(admin=True, topicPerms=["Orders=PUB"])
    assert not bound.is_super
    assert allowed(bound, on_topic("Orders", PUB), on_topic("Other", PUB), CLUSTER) == [True, False, True]


def test_names_are_compared_exactly() -> None:
    billing = account(topicPerms=["Orders=PUB"])
    for name in ("orders", "ORDERS", "Orders ", "Οrders", "Orders\u200b"):
        assert allowed(billing, on_topic(name, PUB)) == [False]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"accessKey": "short", "secretKey": "12345678"}, "accessKey of short must have 7 to"),
        ({"accessKey": "billing", "secretKey": "s3cret"}, "secretKey of billing must have 7 to"),
        ({"accessKey": "billing", "secretKey": "s3cret" * 1_000}, "secretKey of billing must have 7 to"),
        ({"accessKey": "billing"}, "secretKey of billing"),
        ({"accessKey": "billing", "secretKey": 1.5e9}, "secretKey must be text"),
        ({"accessKey": "billing", "secretKey": "s3cret-key", "admin": "maybe"}, "admin must be true or false"),
        ({"accessKey": "billing", "secretKey": "s3cret-key", "topicPerms": "T=PUB"}, "topicPerms must be a list"),
        (
            {"accessKey": "billing", "secretKey": "s3cret-key", "topicPerms": ["T"]},
            "must have the form NAME=PERMISSION",
        ),
        ({"accessKey": "billing", "secretKey": "s3cret-key", "whiteRemoteAddress": "10."}, "is not an address"),
        ("billing", "mapping of keys"),
    ],
)
def test_an_account_that_is_not_valid_is_an_error_without_its_secret(entry: Any, words: str) -> None:
    with pytest.raises(AuthError, match=words) as wrong:
        read_account(entry)
    assert "s3cret" not in str(wrong.value)


def test_numbers_are_keys_and_no_text_of_an_account_has_its_secret() -> None:
    found = read_account({"accessKey": 1234567, "secretKey": 87654321})
    assert found.name == "1234567"
    assert found.signer is not None
    assert "87654321" not in repr(found)
    assert "87654321" not in repr(found.signer)
