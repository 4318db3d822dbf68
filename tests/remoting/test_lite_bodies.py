"""Bodies of requests about lite topics."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cometmq.remoting.bodies import encode_body
from cometmq.remoting.lite.bodies import (
    LiteSubscriptionAction,
    LiteSubscriptionCtlRequestBody,
    LiteSubscriptionDTO,
    OffsetOption,
    OffsetOptionType,
    encode_changes,
)

_TEXTS = st.text(st.characters(codec="utf-8"), max_size=8) | st.just('"offsetOption":null,')
_OPTIONS = st.builds(OffsetOption, type=st.sampled_from(OffsetOptionType), value=st.integers(0, 2**62))
_CHANGES = st.builds(
    LiteSubscriptionDTO,
    action=st.sampled_from(LiteSubscriptionAction),
    client_id=_TEXTS,
    group=_TEXTS,
    topic=_TEXTS,
    lite_topic_set=st.none() | st.lists(_TEXTS, max_size=4),
    offset_option=st.none() | _OPTIONS,
    version=st.integers(-(2**63), 2**63 - 1),
)


@given(st.lists(_CHANGES, max_size=3))
def test_changes_are_encoded_quickly_and_as_all_bodies_are(changes: list[LiteSubscriptionDTO]) -> None:
    assert encode_changes(changes) == encode_body(LiteSubscriptionCtlRequestBody(changes))
