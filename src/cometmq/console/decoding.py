"""Decodes Avro and Protobuf bodies in a process of their own, with limits of memory and processor time.

The libraries have none. Deeply nested values of a recursive Avro type end the process, since fastavro recurses
in C; ten bytes can stand for an array of any number of empty values; and a message of two bytes becomes all fields of
its type.
"""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
import threading
from typing import Any, Final

import msgspec

from cometmq.console.bodies import SHOWN_BYTES, Shown
from cometmq.console.limits import DECODING_MEMORY_BYTES, DECODING_PROCESSES, DECODING_SECONDS
from cometmq.errors import CometMQError

AVRO: Final = "avro"
PROTOBUF: Final = "protobuf"
_OVER: Final = 3
"""The exit code if the memory is used up, or the values are nested too deeply."""
_WAIT_FACTOR: Final = 6
"""The process may take so many times its processor time, since others use the processor as well."""
_free: Final = threading.BoundedSemaphore(DECODING_PROCESSES)


class Task(msgspec.Struct):
    """A body to decode."""

    form: str
    """AVRO or PROTOBUF."""
    body: bytes
    schema: bytes
    """The Avro schema as JSON, or a serialized ``FileDescriptorSet``."""
    type_name: str = ""
    """Protobuf: the name of the message's type."""


class Outcome(msgspec.Struct):
    """The beginning of a decoded body as JSON, or the reason why it cannot be decoded."""

    text: str
    is_whole: bool = True
    failure: str = ""


def decoded(task: Task) -> Shown:
    """Return a body as JSON; this blocks while its process runs.

    :raises CometMQError: the schema cannot be used, the body does not match it, or decoding takes too much.
    """
    if not _free.acquire(blocking=False):
        raise CometMQError("other bodies are being decoded", next_step="try again in a moment")
    try:
        ended = subprocess.run(
            [sys.executable, "-m", __spec__.name],
            input=msgspec.msgpack.encode(task),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=DECODING_SECONDS * _WAIT_FACTOR,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _too_much() from None
    finally:
        _free.release()
    if ended.returncode < 0 or ended.returncode == _OVER:
        raise _too_much()
    if ended.returncode:
        raise CometMQError(f"the process that decodes the body ended with code {ended.returncode}")
    outcome = msgspec.msgpack.decode(ended.stdout, type=Outcome)
    if outcome.failure:
        raise CometMQError(outcome.failure)
    return Shown(task.form, outcome.text, outcome.is_whole)


def _too_much() -> CometMQError:
    return CometMQError(
        f"decoding takes more than {DECODING_SECONDS} s of processor time or {DECODING_MEMORY_BYTES >> 20} MB of "
        "memory: the body has too many values, or they are nested too deeply",
        next_step="download the body",
    )


# --- the process ---


def _run() -> None:
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (DECODING_MEMORY_BYTES, DECODING_MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (DECODING_SECONDS, DECODING_SECONDS))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        outcome = _outcome(msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Task))
    except (MemoryError, RecursionError):
        sys.exit(_OVER)
    sys.stdout.buffer.write(msgspec.msgpack.encode(outcome))


def _outcome(task: Task) -> Outcome:
    form = "Avro" if task.form == AVRO else "Protobuf"
    try:
        return _beginning(_value(task))
    except CometMQError as error:
        return Outcome("", failure=str(error))
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # the libraries may raise any exception
        if "Arena alloc failed" in str(error):  # Protobuf's library has no own class for it
            raise MemoryError from error
        failure = f"the body is not {form} of this schema: {type(error).__name__}: {str(error)[:300]}"
        return Outcome("", failure=f"{failure} (use the schema that the producer used)")


def _value(task: Task) -> Any:
    if task.form == AVRO:
        from cometmq.spark.bodies.avro import avro_value

        return avro_value(task.body, task.schema.decode())
    from cometmq.spark.bodies.protobuf import protobuf_value

    return protobuf_value(task.body, task.type_name, task.schema)


def _beginning(value: Any) -> Outcome:
    """Return the part of a value that a page shows; the rest is not even written."""
    text = io.StringIO()
    for part in json.JSONEncoder(indent=2, ensure_ascii=False, default=_as_json).iterencode(value):
        text.write(part)
        if text.tell() > SHOWN_BYTES:
            return Outcome(text.getvalue()[:SHOWN_BYTES], is_whole=False)
    return Outcome(text.getvalue())


def _as_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)


if __name__ == "__main__":
    _run()
