from __future__ import annotations

import ipaddress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.auth.model import AuthError
from cometmq.auth.policies import (
    EntryInfo,
    PolicyInfo,
    Resource,
    User,
    UserAccount,
    merge_policies,
    policy_infos,
    read_policies,
    without_resource,
)
from cometmq.remoting.permissions import EVERY, Action, Kind, Need, on_group, on_topic

PUB, SUB, GET = Action.PUB, Action.SUB, Action.GET
CLUSTER = Need(Kind.CLUSTER, "", (GET,))


def entry(resource: str, decision: str = "Allow", actions: str = "All", *sources: str) -> EntryInfo:
    return EntryInfo(resource, actions.split(","), list(sources), decision)


def user(*custom: EntryInfo, default: tuple[EntryInfo, ...] = ()) -> UserAccount:
    infos = [PolicyInfo(kind, list(entries)) for kind, entries in (("Custom", custom), ("Default", default)) if entries]
    return UserAccount(User("alice", "password", policies=read_policies(infos)), None, "C", "10.0.0.7", is_super=False)


def allowed(of: UserAccount, need: Need) -> bool:
    return of.refusal(need, 0) is None


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ((entry("Topic:Orders"), entry("Topic:Ord*", "Deny")), True),
        ((entry("Topic:Ord*", "Deny"), entry("Topic:Orders")), True),
        ((entry("Topic:Orders", "Deny"), entry("Topic:Ord*")), False),
        ((entry("Topic:O*", "Deny"), entry("Topic:Ord*")), True),
        ((entry("Topic:Orders"), entry("Topic:Orders", "Deny", "Pub")), False),
        ((entry("Topic:Orders", "Deny", "Pub"), entry("Topic:Orders")), False),
        ((entry("Topic:O*"), entry("Topic:Ord*", "Deny")), False),
        ((entry("Topic:O*"), entry("Topic:*", "Deny")), True),
        ((entry("Topic:*"), entry("*", "Deny")), True),
        ((entry("*"), entry("Topic:*", "Deny")), False),
        ((entry("*"),), True),
        ((entry("Topic:Orders", "Allow", "Sub"),), False),
        ((entry("Topic:Orders", "Deny", "Sub"), entry("Topic:*", "Allow", "Pub")), True),
        ((entry("Topic:Orders", "Allow", "Pub", "10.0.0.0/8"),), True),
        ((entry("Topic:Orders", "Allow", "Pub", "10.0.0.7"),), True),
        ((entry("Topic:Orders", "Allow", "Pub", "10.0.0.8", "::/0"),), False),
        ((entry("Topic:orders"),), False),
        ((entry("Group:Orders"),), False),
    ],
)
def test_the_most_special_entry_that_matches_decides(entries: tuple[EntryInfo, ...], expected: bool) -> None:
    assert allowed(user(*entries), on_topic("Orders", PUB)) == expected


def test_default_policies_count_only_where_no_custom_one_matches() -> None:
    both = user(entry("Topic:*", "Deny", "Pub"), default=(entry("Topic:Orders"),))
    assert not allowed(both, on_topic("Orders", PUB))
    assert allowed(both, on_topic("Orders", SUB))


def test_topics_of_groups_and_of_the_cluster_belong_to_them() -> None:
    mine = user(entry("Topic:*"), entry("Group:mine", "Allow", "Sub"))
    assert allowed(mine, on_topic("%RETRY%mine", PUB))
    assert allowed(mine, on_topic("%DLQ%mine", SUB))
    assert not allowed(mine, on_topic("%RETRY%other", PUB))
    assert not allowed(mine, on_topic("SCHEDULE_TOPIC_XXXX", SUB))
    assert allowed(user(entry("Cluster:C")), on_topic("SCHEDULE_TOPIC_XXXX", SUB))


def test_lists_need_a_resource_that_stands_for_all() -> None:
    everything = Need(Kind.TOPIC, EVERY, (Action.LIST,))
    assert allowed(user(entry("Topic:*", "Allow", "List")), everything)
    assert allowed(user(entry("*")), everything)
    assert not allowed(user(entry("Topic:O*")), everything)
    assert not allowed(user(entry("Cluster:other")), CLUSTER)


def test_words_are_those_of_apache() -> None:
    refused = user(entry("Topic:Other")).refusal(on_topic("NoT", PUB), 310)
    assert refused is not None
    assert refused.message == "User:alice has no permission to access Topic:NoT from 10.0.0.7, no matched policies."
    refused = user(entry("Group:*", "Deny")).refusal(on_group("g", SUB), 11)
    assert refused is not None
    assert refused.message.endswith("access Group:g from 10.0.0.7, the decision is deny.")


names = st.from_regex(r"[ab]{0,3}\*|[ab]{1,4}", fullmatch=True)
resources = st.one_of(
    st.just("*"),
    st.builds("{}:{}".format, st.sampled_from(["Topic", "Group", "topic", "GROUP"]), names),
)
entries = st.builds(
    entry, resources, st.sampled_from(["Allow", "Deny", "deny"]), st.sampled_from(["Pub", "Sub,Get", "All", "List"])
)


@given(st.lists(entries, min_size=1, max_size=8), st.text("ab", min_size=1, max_size=4), st.sampled_from([PUB, SUB]))
def test_a_decision_depends_neither_on_the_order_of_entries_nor_on_storing_them(
    infos: list[EntryInfo], name: str, action: Action
) -> None:
    distinct = list({str(Resource.parse(info.resource or "")): info for info in infos}.values())
    need = on_topic(name, action)
    account = user(*distinct)
    expected = allowed(account, need)
    assert allowed(user(*reversed(distinct)), need) == expected
    stored = msgspec.json.decode(msgspec.json.encode(policy_infos(account.user.policies)), type=list[PolicyInfo])
    again = User("alice", "password", policies=read_policies(stored))
    found = again.decide(need, "C", ipaddress.ip_address("10.0.0.7"))
    assert (found is not None and found.allows) == expected
    if expected:
        denied = user(*distinct, entry(f"Topic:{name}", "Deny"))
        assert not allowed(denied, need)


@pytest.mark.parametrize(
    ("info", "words"),
    [
        (entry("Orders"), "is not a valid resource"),
        (entry("Topic:"), "is not a valid resource"),
        (entry("Table:T"), "is not a valid resource"),
        (entry("Topic:a*b"), "is not a valid resource"),
        (EntryInfo(None, ["Pub"], None, "Allow"), "The resource is null"),
        (entry("Topic:T", "Allow", "Any"), "can not be Any"),
        (entry("Topic:T", "Allow", "Pub", " "), "source ip is empty"),
        (entry("Topic:" + "x" * 300), "is not a valid resource"),
        (entry("Topic:T", "Perhaps"), "decision is null or illegal"),
        (entry("Topic:T", "Allow", "Write"), "is not a valid action"),
        (EntryInfo("Topic:T", [], None, "Allow"), "actions is empty"),
        (entry("Topic:T", "Allow", "All", "10.0.0"), "source ip is invalid"),
        (entry("Topic:T", "Allow", "All", *["10.0.0.1"] * 101), "more than 100"),
    ],
)
def test_entries_that_are_not_valid_are_errors(info: EntryInfo, words: str) -> None:
    with pytest.raises(AuthError, match=words):
        read_policies([PolicyInfo("Custom", [info])])


def test_the_first_entries_of_a_kind_all_stay_and_later_ones_replace_the_first_with_their_resource() -> None:
    first = read_policies([PolicyInfo("Custom", [entry("Topic:T"), entry("Topic:T", "Deny", "Pub")])])
    more = read_policies([PolicyInfo(None, [entry("Topic:T", "Allow", "Sub"), entry("Group:g")])])
    merged = merge_policies(first, more)
    assert [(str(one.resource), one.named_actions) for one in merged["Custom"]] == [
        ("Topic:T", ("Sub",)),
        ("Topic:T", ("Pub",)),
        ("Group:g", ("All",)),
    ]
    left = without_resource(merged, "Custom", Resource.parse("Topic:T"))
    assert [str(one.resource) for one in left["Custom"]] == ["Group:g"]
    assert without_resource(left, "Custom", Resource.parse("Group:g")) == {}


@pytest.mark.parametrize("infos", [[], [PolicyInfo("Custom", [])], [PolicyInfo("Other", [entry("*")])]])
def test_policies_without_entries_or_of_other_types_are_errors(infos: Any) -> None:
    with pytest.raises(AuthError):
        read_policies(infos)
