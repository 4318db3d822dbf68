"""Measures our client beside RocketMQ's C++ client (`rocketmq==0.4.4`), in turn, against one CometMQ broker.

    python benchmarks/compare_client.py [--rounds 5] [--seconds 3]

Prints one JSON line a figure, then a Markdown table of medians and ratios. Where the C++ client has no such
case (many asynchronous sends in flight) the ratio is to its nearest, which the table names.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.interop import builds, systems  # noqa: E402
from tests.interop.systems import System  # noqa: E402

OURS = ("send-one-sync", "send-64", "send-many", "send-batch", "consume-single", "consume-batch")
THEIRS = ("send-one-sync", "send-batch", "consume")
YARDSTICK = {
    "send-one-sync": "send-one-sync",
    "send-64": "send-one-sync",
    "send-many": "send-one-sync",
    "send-batch": "send-batch",
    "consume-single": "consume",
    "consume-batch": "consume",
}


def run(command: list[str], home: Path) -> int:
    """Messages a second that a benchmark program printed."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=300, env={**os.environ, "HOME": str(home)}
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"case"')]
    if not lines:
        raise RuntimeError(f"{command}: {done.stdout}{done.stderr}")
    return int(json.loads(lines[-1])["per_second"])


def main() -> None:
    """Both clients in turn, then the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    here = Path(__file__).parent
    cpp_python = str(builds.cpp_client() / "bin" / "python")
    figures: dict[tuple[str, str], list[int]] = {}
    directory = Path(tempfile.mkdtemp(prefix="cometmq-bench-"))
    try:
        with (
            systems.start_namesrv(System.COMETMQ, directory / "namesrv") as names,
            systems.start_broker(System.COMETMQ, directory / "broker", names.address, {}),
        ):
            common = ["--namesrv", names.address, "--seconds", str(options.seconds)]
            for number in range(options.rounds):
                for client, program, cases in (
                    ("ours", [sys.executable, str(here / "client.py")], OURS),
                    ("C++", [cpp_python, str(here / "client_cpp.py")], THEIRS),
                ):
                    for case in cases:
                        rate = run([*program, *common, case], directory)
                        figures.setdefault((client, case), []).append(rate)
                        line = {"round": number + 1, "client": client, "case": case, "per_s": rate}
                        print(json.dumps(line), flush=True)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print("\n| case | ours | C++ client | ratio |\n|---|---|---|---|")
    for case in OURS:
        ours = statistics.median(figures["ours", case])
        theirs = statistics.median(figures["C++", YARDSTICK[case]])
        named = "" if YARDSTICK[case] == case else f" ({YARDSTICK[case]})"
        print(f"| {case} | {ours:,.0f}/s | {theirs:,.0f}/s{named} | {ours / theirs:.1f} × |")


if __name__ == "__main__":
    main()
