"""Every request code has a permission."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import msgspec
import pytest

import cometmq.auth
import cometmq.broker
import cometmq.namesrv
from cometmq.remoting.processors import Answered, handlers


def marks() -> Iterator[Answered]:
    for package in (cometmq.auth, cometmq.broker, cometmq.namesrv):
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(info.name)
            for _, kind in inspect.getmembers(module, inspect.isclass):
                if kind.__module__ == info.name:
                    yield from (mark for _, mark in handlers(kind))


@pytest.mark.parametrize("mark", list(marks()), ids=lambda mark: mark.code.name)
def test_every_code_has_a_permission_on_fields_that_its_header_has(mark: Answered) -> None:
    assert mark.permission is not None
    fields = {field.name for field in msgspec.structs.fields(mark.header)}
    assert {named.field for named in mark.permission.named} <= fields


def test_every_topic_and_group_of_a_header_is_checked() -> None:
    """Fields that name a topic or group and need nothing are listed here, with the reason."""
    unchecked = {
        "default_topic",  # a template of new topics
        "producer_group",  # producers' groups have no permissions
        "origin_topic",  # the stored message has it
        "topic_filter_type",
        "lite_topic",  # permissions are those of its parent topic, to which the group is bound
    }
    for mark in marks():
        assert mark.permission is not None
        named = {one.field for one in mark.permission.named}
        names = {
            field.name
            for field in msgspec.structs.fields(mark.header)
            if "topic" in field.name or "group" in field.name
        }
        texts = {name for name in names if mark.header.__annotations__.get(name) in ("str", "str | None")}
        left = texts - named - unchecked
        cluster_wide = any(need.name in ("", "*") for need in mark.permission.fixed)
        any_account = "REPLY" in mark.code.name
        assert not left or cluster_wide or any_account, (mark.code.name, left)
