"""A function has at most 60 lines and seven parameters. The exceptions are named here, with their reasons."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parents[1] / "src" / "cometmq"
MAX_LINES: Final = 60
MAX_PARAMETERS: Final = 7

LONG: Final = {
    "store/write_batch.py WriteBatch.put": "runs for each message: calls of parts would cost more than they explain",
}
MANY_PARAMETERS: Final = {
    "client/admin/topics.py TopicAdmin.create_topic": "public interface: the attributes of a topic, by name",
    "client/consumer/push_consumer.py PushConsumer.__init__": "public interface: options by name",
    "client/lite/consumer.py LiteTopicConsumer.__init__": "public interface: options by name",
    "client/sync/lite.py SyncLiteTopicConsumer.__init__": "public interface: options by name",
    "client/simple/consumer.py SimpleConsumer.__init__": "public interface: options by name",
    "client/producer/producer.py Producer.__init__": "public interface: options by name",
    "client/producer/transaction_producer.py TransactionProducer.__init__": "public interface: options by name",
    "client/sync/clients.py SyncProducer.__init__": "public interface: options by name",
    "client/sync/clients.py SyncTransactionProducer.__init__": "public interface: options by name",
    "testing/cluster.py Cluster.__init__": "public interface: options by name",
    "testing/sync.py SyncCluster.__init__": "public interface: options by name",
    "options/declared.py option": "declares a field: each parameter is a property of the option",
    "message/record.py encode_record": "the fields of a record, by name",
    "client/send/encoding.py SendEncoder.frame": "runs for each message: an object would be made for each call",
    "store/queue/get_message.py get_message": "runs for each pull: an object would be made for each call",
}


def functions(node: ast.AST, name: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield the functions in a node with their names."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{name}.{child.name}" if name else child.name
            if not isinstance(child, ast.ClassDef):
                yield inner, child
            yield from functions(child, inner)
        else:
            yield from functions(child, name)


def too_large() -> tuple[set[str], set[str]]:
    """Return the functions with too many lines, and those with too many parameters, without commands."""
    long, wide = set(), set()
    for path in SOURCE.rglob("*.py"):
        place = path.relative_to(SOURCE).as_posix()
        if place.startswith("cli/"):  # the options of a command are its parameters
            continue
        for name, function in functions(ast.parse(path.read_text()), ""):
            assert function.end_lineno is not None
            if function.end_lineno - function.lineno + 1 > MAX_LINES:
                long.add(f"{place} {name}")
            parameters = [
                one.arg for one in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
            ]
            if len(parameters) - (parameters[:1] in (["self"], ["cls"])) > MAX_PARAMETERS:
                wide.add(f"{place} {name}")
    return long, wide


def test_no_function_is_larger_than_the_limits_but_the_named_ones() -> None:
    for found, exceptions in zip(too_large(), (LONG, MANY_PARAMETERS), strict=True):
        assert found == set(exceptions)
