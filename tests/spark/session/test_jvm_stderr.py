"""Lines of the JVM's standard error are passed on or dropped, in whatever pieces they come."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cometmq.spark.session.jvm_stderr import Sieve

START = "WARNING: Using incubator modules: jdk.incubator.vector\n"
HEAD = "Traceback (most recent call last):\n"
MANAGER = '  File "/venv/pyspark.zip/pyspark/daemon.py", line 264, in manager\n'
WORKER = '  File "/venv/pyspark.zip/pyspark/daemon.py", line 95, in worker\n'
END = "BrokenPipeError: [Errno 32] Broken pipe\n"
IDLE = HEAD + MANAGER + WORKER + END
WITH_SOURCE = HEAD + MANAGER + "    code = worker(sock)\n           ^^^^^^\n" + WORKER + "    outfile.flush()\n" + END
MIXED = HEAD + HEAD + MANAGER + WORKER + MANAGER + END + WORKER + END
OWN = HEAD + '  File "/mine.py", line 3, in manager\n    write()\n' + END
BAR = "\r[Stage 0:>      (0 + 2) / 2]\r\r          \r"
UNKNOWN = [START, IDLE, WITH_SOURCE, MIXED]
TOLD = [OWN, BAR, "heard\n", "    indented\n", "\n", HEAD]


@given(st.lists(st.sampled_from([*UNKNOWN, *TOLD]), max_size=6), st.lists(st.integers(0, 500), max_size=20))
def test_all_is_passed_on_but_what_tells_nothing(parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts).encode()
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    sieve = Sieve()
    passed = b"".join(sieve.passed(text[first:end]) for first, end in pairwise(bounds)) + sieve.rest()
    expected = "".join(part for part in parts if part not in UNKNOWN)
    assert passed.decode().replace(HEAD, "") == expected.replace(HEAD, "")
    assert passed.decode().count(HEAD) == expected.count(HEAD)  # where one stands alone, it may come a little later


def test_a_bar_is_seen_at_once_and_a_traceback_behind_it_is_not() -> None:
    sieve = Sieve()
    assert sieve.passed(b"\r[Stage 0:>  (0 + 2) / 2]") == b"\r[Stage 0:>  (0 + 2) / 2]"
    assert sieve.passed(b"\r" + IDLE.encode()) == b"\r"
    assert sieve.passed(OWN.encode()) == OWN.encode()
    assert sieve.passed(b"Trace") == b""
    assert sieve.rest() == b"Trace"
