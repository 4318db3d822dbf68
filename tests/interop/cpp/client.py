"""Send and receive messages with RocketMQ's C++ client, through its ctypes binding, and print JSON lines.

Runs under an interpreter of its own that has the binding; the package bundles the compiled client.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import itertools
import json
import os
import queue
import sys
import threading
import time
from typing import Any

from rocketmq.client import Message, MessageModel, Producer, PullConsumer, PushConsumer, RecvMessage, SendResult, dll
from rocketmq.exceptions import ffi_check

BATCH_MESSAGES = 10
# From the last awaited message to the shutdown: the client counts a message as consumed after its listener returned.
LINGER_MS = 150
PRINTING = threading.Lock()
CONSUME_SUCCESS, RECONSUME_LATER = 0, 1

# In the library, but not declared by its binding.
dll.SetProducerCompressMsgBodyOverHowmuch.argtypes = [ctypes.c_void_p, ctypes.c_int]


def emit(event: str, **fields: Any) -> None:
    """Print one event as a JSON line."""
    with PRINTING:
        print(json.dumps({"event": event, **fields}), flush=True)


def body(prefix: str, index: int, size: int) -> bytes:
    """``prefix-index|`` repeated to the wanted number of bytes, or once without a bar when no size is given."""
    unit = f"{prefix}-{index}".encode()
    return ((unit + b"|") * (size // len(unit) + 1))[:size] if size else unit


def message(options: argparse.Namespace, index: int) -> Message:
    """Build the message with this number."""
    built = Message(options.topic)
    built.set_body(body(options.body, index, options.body_size))
    tags = options.tags.split(",")
    if tags[0]:
        built.set_tags(tags[index % len(tags)])
    if options.keys:
        built.set_keys(options.keys.replace("{i}", str(index)))
    for name, value in json.loads(options.properties).items():
        built.set_property(name, value)
    if options.delay_level:
        built.set_delay_time_level(options.delay_level)
    return built


def sent(index: int, count: int, result: SendResult) -> None:
    """Report an answered send."""
    emit(
        "sent",
        index=index,
        count=count,
        status=f"SEND_{result.status.name}",
        msgId=result.msg_id,
        queueOffset=result.offset,
    )


def send_async(producer: Producer, messages: list[Message], first: int) -> None:
    """Send all at once and wait for every answer."""
    answers: queue.Queue[Exception | None] = queue.Queue()
    for index, each in enumerate(messages, first):

        def on_success(result: SendResult, index: int = index) -> None:
            sent(index, 1, result)
            answers.put(None)

        producer.send_async(each, on_success, answers.put)
    for _ in messages:
        problem = answers.get(timeout=60)
        if problem is not None:
            raise problem


def produce(options: argparse.Namespace) -> None:
    """Send a numbered series of messages by one kind of send."""
    producer = Producer(options.group or "interop-producer")
    producer.set_namesrv_addr(options.namesrv)
    ffi_check(dll.SetProducerCompressMsgBodyOverHowmuch(producer._handle, options.compress_over))
    producer.set_timeout(20000)
    producer.start()
    indexes = range(options.first, options.first + options.count)
    messages = [message(options, index) for index in indexes]
    if options.mode == "sync":
        for index, each in zip(indexes, messages, strict=True):
            sent(index, 1, producer.send_sync(each))
    elif options.mode == "async":
        send_async(producer, messages, options.first)
    elif options.mode == "oneway":
        for each in messages:
            producer.send_oneway(each)
    elif options.mode == "selector":
        for index, each in zip(indexes, messages, strict=True):
            sent(index, 1, producer.send_orderly(each, index))
    elif options.mode == "batch":
        pairs = iter(zip(indexes, messages, strict=True))
        while chunk := list(itertools.islice(pairs, BATCH_MESSAGES)):
            sent(chunk[0][0], len(chunk), producer.send_batch([each for _, each in chunk]))
    else:
        raise ValueError(f"unknown mode {options.mode}")
    producer.shutdown()
    emit("done", count=options.count)


def text(value: bytes | None) -> str | None:
    """Decode what the library gives; None stays."""
    return None if value is None else value.decode()


def describe(received: RecvMessage, options: argparse.Namespace) -> None:
    """Report a received message; the library tells only those properties that it is asked for by name."""
    content = received.body
    names = ["UNIQ_KEY", "KEYS", "TAGS", *json.loads(options.properties)]
    values = {name: text(received.get_property(name)) for name in names}
    emit(
        "message",
        topic=received.topic, queueId=received.queue_id, queueOffset=received.queue_offset,
        commitLogOffset=received.commit_log_offset, storeSize=received.store_size, msgId=received.id,
        keys=text(received.keys), tags=text(received.tags),
        properties={name: value for name, value in values.items() if value},
        bornTimestamp=received.born_timestamp, storeTimestamp=received.store_timestamp,
        reconsumeTimes=received.reconsume_times, preparedTransactionOffset=received.prepared_transaction_offset,
        bodySize=len(content), bodySha256=hashlib.sha256(content).hexdigest(),
    )  # fmt: skip


def consume(options: argparse.Namespace) -> None:
    """Receive until enough messages came, time is up, or a line (or the end) of standard input asks to stop."""
    if options.mode == "pull":
        pull(options)
        return
    if options.from_ != "first":
        raise ValueError("the binding cannot set where a new group starts")
    model = MessageModel.BROADCASTING if options.model == "broadcasting" else MessageModel.CLUSTERING
    consumer = PushConsumer(options.group, orderly=options.mode == "orderly", message_model=model)
    consumer.set_namesrv_addr(options.namesrv)
    consumer.set_instance_name(f"{os.getpid()}")
    consumer.set_thread_count(2)
    count = itertools.count(1)
    received = 0
    finished = threading.Event()

    def on_message(_: Any, handle: Any) -> int:
        nonlocal received
        each = RecvMessage(handle)
        describe(each, options)
        received = next(count)
        if received >= options.expect:
            finished.set()
        return RECONSUME_LATER if each.reconsume_times < options.fail else CONSUME_SUCCESS

    def wait_for_stop() -> None:
        sys.stdin.readline()
        finished.set()

    # As the binding's `subscribe`, whose callbacks cannot fail: what they raise reaches the library as success.
    ffi_check(dll.Subscribe(consumer._handle, options.topic.encode(), options.tag.encode()))
    consumer._register_callback(on_message)
    consumer.start()
    emit("started")
    threading.Thread(target=wait_for_stop, daemon=True).start()
    finished.wait(options.timeout)
    time.sleep(options.linger_ms / 1000)
    consumer.shutdown()
    emit("done", count=received)


def pull(options: argparse.Namespace) -> None:
    """Read every queue of the topic from its first to its last message."""
    consumer = PullConsumer(options.group)
    consumer.set_namesrv_addr(options.namesrv)
    consumer.start()
    received = 0
    for each in consumer.pull(options.topic, options.tag):
        describe(each, options)
        received += 1
    consumer.shutdown()
    emit("done", count=received)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse the little command line that all client programs share."""
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["produce", "consume"])
    for name in ("namesrv", "topic", "group", "keys", "tags"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--mode")
    parser.add_argument("--body", default="body")
    parser.add_argument("--properties", default="{}")
    parser.add_argument("--tag", default="*")
    parser.add_argument("--model", default="clustering")
    parser.add_argument("--from", dest="from_", default="first")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--body-size", type=int, default=0)
    parser.add_argument("--compress-over", type=int, default=4096)
    parser.add_argument("--delay-level", type=int, default=0)
    parser.add_argument("--fail", type=int, default=0)
    parser.add_argument("--expect", type=int, default=sys.maxsize)
    parser.add_argument("--timeout", type=float, default=60)
    parser.add_argument("--linger-ms", type=int, default=LINGER_MS)
    options = parser.parse_args(arguments)
    options.mode = options.mode or {"produce": "sync", "consume": "push"}[options.command]
    return options


def main() -> None:
    """Run one command."""
    options = parse(sys.argv[1:])
    try:
        {"produce": produce, "consume": consume}[options.command](options)
    except Exception as problem:
        emit("error", type=type(problem).__name__, message=str(problem))
        sys.stdout.flush()
        os._exit(1)
    # The library's destructors of global objects are not safe beside its own threads.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
