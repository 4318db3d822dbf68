"""The pages about the configuration of brokers and nameservers."""

from __future__ import annotations

import pytest
from tests.helpers.consoles import Surfer

from cometmq.testing.sync import SyncCluster


def test_only_keys_that_differ_from_their_defaults_are_listed_until_all_are_wanted(surfer: Surfer) -> None:
    page = surfer.get("/configuration?q=enablePropertyFilter")
    assert "enablePropertyFilter all servers true false while it runs" in page.words
    assert "No key or value contains this text" in surfer.get("/configuration?q=maxMessageSize").words
    page = surfer.get("/configuration?q=maxMessageSize&all=yes&server=broker-1")
    assert "maxMessageSize broker-1 4194304 4194304 with a restart" in page.words
    assert "maxMessageSize broker-0" not in page.words


def test_a_key_changes_at_one_broker_or_at_all_after_old_and_new_are_shown(surfer: Surfer) -> None:
    place = "/configuration/broker/diskMaxUsedSpaceRatio"
    plan = surfer.post(place, value=61, server="broker-1")
    assert "broker-1 diskMaxUsedSpaceRatio 95 61" in plan.words
    assert "61" not in surfer.get("/configuration?q=diskMaxUsedSpaceRatio&all=yes").words, "the preview changes nothing"
    page = surfer.change(place, value=61, server="broker-1")
    assert "diskMaxUsedSpaceRatio is 61 now." in page.words
    assert "diskMaxUsedSpaceRatio broker-0 95 75" in page.words
    assert "diskMaxUsedSpaceRatio broker-1 61 75" in page.words
    line = surfer.audit("broker.config", "diskMaxUsedSpaceRatio")[0]
    assert (line["outcome"], line["details"]) == ("done", {"broker-1": "95 -> 61"})
    page = surfer.change(place, value=95)
    assert "diskMaxUsedSpaceRatio all servers 95 75" in page.words
    assert "already has the value 95" in surfer.post(place, value=95).words


def test_a_key_of_a_nameserver_changes_too(surfer: Surfer, cluster: SyncCluster) -> None:
    page = surfer.change("/configuration/nameserver/orderMessageEnable", value="true")
    assert f"orderMessageEnable {cluster.namesrv_address} true false" in page.words


@pytest.mark.parametrize(
    ("key", "value", "answer"),
    [
        ("diskMaxUsedSpaceRatio", "1000", "allowed is a whole number from"),
        ("diskMaxUsedSpaceRatio", "x\ndeleteWhen=05", "allowed is a whole number from"),
        ("maxMessageSize", "1000", "cannot change while the server runs"),
        ("noSuchKey", "1", "no server reports the key"),
        ("diskMaxUsedSpaceRatio", "9" * 100_000, "has more than"),
    ],
)
def test_what_a_broker_would_refuse_is_refused_before_the_preview(
    surfer: Surfer, key: str, value: str, answer: str
) -> None:
    page = surfer.post(f"/configuration/broker/{key}", value=value)
    assert page.status in (400, 404)
    assert answer in page.words
    assert "confirmed" not in page.text


def test_secrets_are_on_no_page(surfer: Surfer) -> None:
    assert surfer.get("/configuration/broker/innerClientAuthenticationCredentials").status == 404
    assert "AuthenticationCredentials" not in surfer.get("/configuration?all=yes&q=credentials").words


def test_a_reader_sees_keys_and_is_offered_no_change(reader: Surfer) -> None:
    page = reader.get("/configuration/broker/diskMaxUsedSpaceRatio")
    assert "Allowed: a whole number from" in page.words
    assert 'name="value"' not in page.text
