"""The code blocks of a page, and how they are run: as printed, in a fresh directory, against a cluster of the test.

An HTML comment directly before a block, which readers do not see, may say:

* ``<!-- not run: REASON -->``: the block is not run;
* ``<!-- given: CODE -->``: what the page's reader has already, run before the block;
* ``<!-- Ctrl-C after: TEXT -->``: the block runs until it is interrupted, here when it has printed the text.

A block of ``text`` after a block is what that block prints; a line ``…`` stands for any lines. A block whose first line
is ``# NAME.EXTENSION`` is a file of that name.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]

_BLOCK: Final = re.compile(
    r"(?:^<!-- (?P<marker>not run|given|Ctrl-C after):(?P<said>.*?)-->\n)?"
    r"^```(?P<language>\w+)\n(?P<code>.*?)^```$(?:\n+```text\n(?P<prints>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
_FILE: Final = re.compile(r"# ([\w.]+\.\w+)\n")
_ABSOLUTE: Final = re.compile(r"(?<![\w.~:/])/(?=(?:lake|data|backup|var/lib|run/secrets|etc/rocketmq)/)")
_DEADLINE_S: Final = 30.0


@dataclass(frozen=True)
class Block:
    """One code block."""

    page: str
    line: int
    language: str
    code: str
    marker: str | None
    said: str
    prints: str

    @property
    def file(self) -> str | None:
        """The name of the file that the block shows, if it does."""
        named = _FILE.match(self.code)
        return None if named is None else named[1]

    @property
    def is_test(self) -> bool:
        """The block has tests for pytest."""
        return re.search(r"^(async )?def test_", self.code, re.MULTILINE) is not None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: str) -> list[Block]:
    """Return the code blocks of a page of the project, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Block(
            page,
            text.count("\n", 0, found.start("code")) + 1,
            found["language"],
            found["code"],
            found["marker"],
            (found["said"] or "").strip(),
            found["prints"] or "",
        )
        for found in _BLOCK.finditer(text)
        if found["language"] != "text"
    ]


class Runner:
    """Runs the blocks of one page after each other, in one directory and with one set of names.

    :param command: runs a command of ``cometmq`` with its arguments and its input, and returns what it prints; by
        default a process does.
    """

    def __init__(
        self, directory: Path, namesrv: str, command: Callable[[list[str], bytes], str] | None = None, **names: Any
    ) -> None:
        self.directory = directory
        self._namesrv = namesrv
        self._command = command
        self._names: dict[str, Any] = {"__name__": "__main__", **names}

    def run(self, block: Block) -> None:
        """Run a block, and compare what it prints."""
        if block.marker == "not run":
            return
        if block.file is not None or block.is_test:
            (self.directory / (block.file or f"test_line_{block.line}.py")).write_text(block.code)
            return
        run = self._python if block.language == "python" else self._console
        given = block.said if block.marker == "given" else ""
        printed = run(self._here(given), self._here(block.code), block)
        check_output(printed, self._here(block.prints), block)

    def _here(self, code: str) -> str:
        """Let code find this cluster, and its absolute paths below the directory."""
        code = re.sub(r"(?:localhost|127\.0\.0\.1):9876", self._namesrv, code)
        return _ABSOLUTE.sub(f"{self.directory}/", code)

    def _console(self, given: str, code: str, block: Block) -> str:
        commands = re.findall(r"^\$ ((?:.*\\\n)*.*)$", code, re.MULTILINE)
        assert commands, f"{block} has no command"
        if self._command is None:
            return self._shell("\n".join([given, *commands]), block)
        printed = []
        with contextlib.chdir(self.directory), self._environment():
            for line in [*given.splitlines(), *commands]:
                words = shlex.split(line.replace("\\\n", " "), comments=True)
                if words[0] != "cometmq":
                    printed.append(self._shell(line, block))
                    continue
                source = b""
                if words[-2:-1] == ["<"]:
                    source, words = Path(words[-1]).read_bytes(), words[:-2]
                printed.append(self._command(words[1:], source))
        return "".join(printed)

    def _shell(self, script: str, block: Block) -> str:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "NAMESRV_ADDR": self._namesrv, "HOME": str(self.directory)}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=10 * _DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, f"{block}: {done.stdout}{done.stderr}"
        return done.stdout

    def _python(self, given: str, code: str, block: Block) -> str:
        output = io.StringIO()
        interrupts = block.said if block.marker == "Ctrl-C after" else None
        with contextlib.redirect_stdout(output), contextlib.chdir(self.directory), self._environment():
            try:
                with _interrupting(output, interrupts):
                    self._execute(f"{given}\n{code}", block)
            except KeyboardInterrupt:
                assert interrupts is not None, f"{block} was interrupted"
        return output.getvalue()

    def _execute(self, code: str, block: Block) -> None:
        compiled = compile(code, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if compiled.co_flags & inspect.CO_COROUTINE:
            asyncio.run(eval(compiled, self._names))  # the block of a page, with `await` as in a notebook
        else:
            exec(compiled, self._names)  # the block of a page

    @contextlib.contextmanager
    def _environment(self) -> Iterator[None]:
        before = os.environ.get("NAMESRV_ADDR")
        os.environ["NAMESRV_ADDR"] = self._namesrv
        try:
            yield
        finally:
            os.environ.pop("NAMESRV_ADDR")
            if before is not None:
                os.environ["NAMESRV_ADDR"] = before


@contextlib.contextmanager
def _interrupting(output: io.StringIO, text: str | None) -> Iterator[None]:
    """Send SIGINT, as Ctrl-C does, when the text was printed; in any case at the deadline."""
    if text is None:
        yield
        return
    done = threading.Event()

    def watch() -> None:
        end = time.monotonic() + _DEADLINE_S
        while not done.wait(0.01):
            if text in output.getvalue() or time.monotonic() > end:
                os.kill(os.getpid(), signal.SIGINT)
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        assert text in output.getvalue(), f"{text!r} was not printed in {_DEADLINE_S:g} s"


def check_output(printed: str, expected: str, block: Block) -> None:
    """Check that the lines of ``expected`` were printed one after the other; ``…`` stands for any lines."""
    lines = iter(line.rstrip() for line in printed.splitlines())
    anything = False
    for wanted in expected.splitlines():
        if wanted.strip() == "…":
            anything = True
            continue
        got = next((line for line in lines if not anything or line == wanted.rstrip()), None)
        assert got == wanted.rstrip(), f"{block} printed {got!r}, not {wanted!r}; all of it:\n{printed}"
        anything = False
