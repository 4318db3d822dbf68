"""The page about what was changed with the console."""

from __future__ import annotations

from tests.helpers.consoles import Surfer
from tests.helpers.waiting import wait_for


def test_each_change_is_listed_with_its_result_the_newest_first(surfer: Surfer) -> None:
    assert "No change of this kind was made" in surfer.get("/changes?q=no-such-change").words
    for value in (61, 62):
        surfer.change("/configuration/broker/diskMaxUsedSpaceRatio", value=value, server="broker-1")
    wait_for(lambda: "-> 62" in surfer.get("/changes").words, "the log has both")
    page = surfer.get("/changes?q=diskmaxused")
    assert "127.0.0.1 broker.config diskMaxUsedSpaceRatio broker-1: 61 -> 62 done" in page.words
    assert page.words.index("61 -> 62") < page.words.index("-> 61 done")


def test_a_line_that_is_no_entry_hides_no_other(surfer: Surfer) -> None:
    with (surfer.data / "audit.log").open("ab") as file:
        file.write(b'\xff{"no entry\n{"time":"now","event":"change","subject":"<b>x","details":7}\n')
    page = surfer.get("/changes?q=%3Cb%3Ex")
    assert page.status == 200
    assert "&lt;b&gt;x</th>" in page.text


def test_a_reader_does_not_see_who_changed_what(reader: Surfer) -> None:
    assert reader.get("/changes").status == 403
    assert "/changes" not in reader.get("/keys").text
