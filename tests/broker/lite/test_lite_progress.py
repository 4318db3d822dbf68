"""The removal of a lite topic is taken back if its entry is not stored."""

from __future__ import annotations

from cometmq.broker.controller import Broker
from cometmq.broker.lite.name_table import NO_NAME
from cometmq.broker.pop.entries import Acked, Forgotten, PoppedInOrder
from cometmq.message.lite_names import lmq_name


async def test_a_removal_that_is_not_stored_is_taken_back(broker: Broker) -> None:
    index = broker.lite.indexes.of("P")
    number = index.add("a")
    for log_offset in (100, 200, 300):
        index.append(number, log_offset)
    progress = broker.lite.progress
    name = lmq_name("P", "a")
    progress.apply(PoppedInOrder(name, "g", 0, [0, 1], [0, 0], 2, 1_000, 60_000, ""))
    progress.apply(Acked(name, "g", 0, 1_000, [0]))
    undo = progress.apply(Forgotten(name, "", 0, 400))
    assert index.find("a") == NO_NAME
    assert index.find("b") == NO_NAME
    other = index.add("b")  # it gets the number of the removed one
    assert other == number
    undo()
    number = index.find("a")
    assert (index.name(number), index.extent(number)) == ("a", (0, 3))
    assert [index.log_offset(index.entry(number, offset)) for offset in range(3)] == [100, 200, 300]
    assert {index.owner(index.entry(number, offset)) for offset in range(3)} == {number}
    group = progress.of("P", "g")
    assert (group.offset(number), sorted(group.flights[number].messages)) == (1, [1])
    assert index.extent(other) == (0, 0)
    assert not group.is_known(other)


async def test_a_removal_leaves_the_messages_after_it(broker: Broker) -> None:
    index = broker.lite.indexes.of("P")
    number = index.add("a")
    index.append(number, 500)
    progress = broker.lite.progress
    name = lmq_name("P", "a")
    progress.apply(PoppedInOrder(name, "g", 0, [0], [0], 1, 1_000, 60_000, ""))
    progress.apply(Forgotten(name, "", 0, 400))
    assert index.extent(index.find("a")) == (0, 1)
    assert progress.of("P", "g").has_more(number)
