"""CloudEvents through a broker, and in the form that the SDK for Java writes and reads."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import Any, ClassVar, cast

import pytest
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

from cometmq.client import Message, SimpleConsumer
from cometmq.integrations.cloudevents import from_message, is_event, to_binary, to_structured
from cometmq.message.compression import decompress
from cometmq.message.sysflag import COMPRESSED
from cometmq.testing import Cluster

TIME = datetime(2026, 11, 30, 2, 44, 8, 123000, UTC)


def event_of(data: Any = None, **further: Any) -> CloudEvent:
    attributes = {"id": "7", "source": "/shop", "type": "order.made", "specversion": "1.0", "time": TIME, **further}
    return CloudEvent(attributes=attributes, data=data)


@pytest.mark.parametrize("write", [to_binary, to_structured])
@pytest.mark.parametrize(
    ("data", "further"),
    [
        ({"order": 7}, {"datacontenttype": "application/json"}),
        (None, {}),
        (b"\xff\x00", {"datacontenttype": "application/octet-stream"}),
        ("grüezi", {"datacontenttype": "text/plain", "subject": "ünïcode", "shard": "5"}),
    ],
)
async def test_an_event_comes_back_through_a_broker(write: Any, data: Any, further: dict[str, str]) -> None:
    event = event_of(data, **further)
    async with Cluster() as cluster:
        await cluster.create_topic("events")
        await cluster.send(write(event, "events"))
        async with SimpleConsumer("readers", {"events": "*"}, instance=cluster.client_instance()) as reader:
            (message,) = await reader.receive(wait_s=5)
    assert message.keys == ("7",)
    assert is_event(message)
    read = from_message(message)
    assert read.get_data() == data
    assert read.get_attributes() == event.get_attributes()


def test_binary_mode_is_that_of_the_sdk_for_java() -> None:
    message = to_binary(event_of({"a": 1}, datacontenttype="application/json", partitionkey="k", urgent=True), "events")
    assert message.properties == {
        "CE_id": "7",
        "CE_source": "/shop",
        "CE_type": "order.made",
        "CE_specversion": "1.0",
        "CE_time": "2026-11-30T02:44:08.123000Z",
        "CE_contenttype": "application/json",
        "CE_partitionkey": "k",
        "CE_urgent": "true",
    }
    assert message.body == b'{"a": 1}'
    assert to_binary(event_of(), "events").body == b"\0"


def test_structured_mode_is_that_of_the_sdk_for_java() -> None:
    message = to_structured(event_of({"a": 1}), "events")
    assert message.properties == {"CE_contenttype": "application/cloudevents+json"}


def test_a_prefix_in_small_letters_is_read_as_well() -> None:
    properties = {"ce_id": "1", "ce_source": "/s", "ce_type": "t", "ce_specversion": "1.0", "other": "x"}
    read = from_message(Message("events", b"\0", properties=properties))
    assert read.get_id() == "1"
    assert read.get_data() is None


def test_a_message_without_an_event_is_an_error() -> None:
    message = Message("events", b"{}", properties={"type": "x"})
    assert not is_event(message)
    with pytest.raises(ValueError, match="contains no CloudEvent"):
        from_message(message)
    structured = Message("events", b"[]", properties={"CE_contenttype": "application/cloudevents+json"})
    with pytest.raises(ValueError, match="malformed"):
        from_message(structured)


def test_an_event_that_is_nested_too_deeply_is_malformed() -> None:
    message = Message("events", b"[" * 100_000, properties={"CE_contenttype": "application/cloudevents+json"})
    with pytest.raises(ValueError, match="malformed"):
        from_message(message)


def test_an_event_with_a_damaged_body_is_malformed() -> None:
    class Damaged:
        properties: ClassVar[dict[str, str]] = {"CE_contenttype": "application/cloudevents+json"}

        @property
        def body(self) -> bytes:
            return decompress(b"damaged", COMPRESSED, 100)

    with pytest.raises(ValueError, match="malformed"):
        from_message(cast(Any, Damaged()))


def test_an_empty_attribute_needs_structured_mode() -> None:
    event = event_of({}, note="")
    with pytest.raises(ValueError, match="note is empty"):
        to_binary(event, "events")
    assert from_message(to_structured(event, "events")).get_extension("note") == ""


def test_data_that_means_none_needs_structured_mode() -> None:
    event = event_of(b"\0", datacontenttype="application/octet-stream")
    with pytest.raises(ValueError, match="use to_structured"):
        to_binary(event, "events")
    assert from_message(to_structured(event, "events")).get_data() == b"\0"


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"CE_contenttype": "application/cloudevents-batch+json"}, "a batch of CloudEvents"),
        ({"CE_specversion": "1.0", "CE_time": "yesterday"}, "malformed CloudEvent: invalid literal"),
    ],
)
def test_an_error_says_what_is_wrong(properties: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        from_message(Message("events", b"[]", properties=properties))


def test_an_id_with_blanks_is_no_key() -> None:
    assert to_binary(event_of(id="a b"), "events").keys == []


@given(st.binary(max_size=50), st.dictionaries(st.sampled_from(["CE_id", "CE_contenttype", "CE_time"]), st.text()))
def test_malformed_events_are_value_errors(body: bytes, properties: dict[str, str]) -> None:
    message = Message("events", body, properties={"CE_specversion": "1.0", **properties})
    with contextlib.suppress(ValueError):
        from_message(message)
