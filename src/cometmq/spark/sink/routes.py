"""Where messages can be sent: the write queues of a topic and the masters that hold them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cometmq.client.errors import ClientError
from cometmq.client.route import route_of
from cometmq.message.names import MASTER_ID
from cometmq.remoting.blocking import BlockingConnection
from cometmq.remoting.bodies import TopicRouteData, decode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import GetRouteInfoRequestHeader
from cometmq.spark.errors import SinkError, UnreachableError
from cometmq.spark.namesrv import ask_namesrv, demand_success
from cometmq.spark.queues import Queue
from cometmq.spark.sink.options import SinkOptions

ANSWER_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class WriteRoute:
    """One topic as a sink sees it."""

    queues: tuple[Queue, ...]
    """The write queues, sorted by broker and number: the order in which RocketMQ's selectors count them."""
    masters: dict[str, str]
    """Address of the master of each broker."""


def look_up(options: SinkOptions, topic: str) -> WriteRoute:
    """Ask a nameserver for a topic.

    :raises UnreachableError: no nameserver answers.
    :raises SinkError: the topic does not exist, or nothing can be written to it.
    """

    def ask(connection: BlockingConnection) -> RemotingCommand:
        header = GetRouteInfoRequestHeader(topic, accept_standard_json_only=True)
        return connection.invoke(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)

    answer = ask_namesrv(options.namesrv_addr, options.access, min(ANSWER_SECONDS, options.send_timeout_s), ask)
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        raise SinkError(
            f"topic {topic} does not exist", next_step=f"create it: cometmq topic create {topic}, or see its spelling"
        )
    data = decode_body(TopicRouteData, demand_success(answer).body)
    try:
        write_queues = route_of(topic, data).write_queues
    except ClientError as error:
        raise SinkError(error.message, next_step=error.next_step) from error
    queues = tuple(Queue(of.topic, of.broker_name, of.queue_id) for of in write_queues)
    if not queues:
        raise SinkError(
            f"topic {topic} has no queue that can be written to",
            next_step="its permission must have W, and a master must be registered",
        )
    masters = {
        broker.broker_name: broker.broker_addrs[MASTER_ID]
        for broker in data.broker_datas
        if MASTER_ID in broker.broker_addrs
    }
    return WriteRoute(queues, masters)


class Routes:
    """The topics that a task has sent to so far; each is looked up once."""

    def __init__(
        self,
        options: SinkOptions,
        known: dict[str, WriteRoute],
        settle: Callable[[str, WriteRoute], WriteRoute] = lambda _, route: route,
    ) -> None:
        """Begin with the routes that the driver knows; ``settle`` has the last word on each."""
        self._options = options
        self._planned = known
        self._settle = settle
        self._known: dict[str, WriteRoute] = {}

    def of(self, topic: str) -> WriteRoute:
        """The route of a topic.

        :raises SinkError: as :func:`look_up`.
        """
        route = self._known.get(topic)
        if route is None:
            found = self._planned.get(topic) or look_up(self._options, topic)
            route = self._known[topic] = self._settle(topic, found)
        return route

    def address_of(self, queue: Queue, *, again: bool = False) -> str:
        """The master of a queue; ``again`` asks the nameserver anew, since it did not answer where it was.

        :raises UnreachableError: it is not registered now, or no nameserver answers.
        """
        masters = look_up(self._options, queue.topic).masters if again else self.of(queue.topic).masters
        if queue.broker not in masters:
            raise UnreachableError(f"broker {queue.broker} of {queue} is not registered with the nameserver")
        return masters[queue.broker]
