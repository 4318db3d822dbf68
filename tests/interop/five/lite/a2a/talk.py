"""An agent and two callers of rocketmq-a2a: each caller has a lite topic of its own for the answers.

Arguments: the endpoint and the namespace. Prints one line of JSON with the answers of each caller.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from types import SimpleNamespace

from a2a.types.a2a_pb2 import GetTaskRequest, Message, Part, Role, SendMessageRequest
from google.protobuf.json_format import MessageToJson
from rocketmq_a2a.server.request_handler import StandaloneRequestHandler
from rocketmq_a2a.server.rocketmq_agent_server import AgentServerConfig, RocketMQAgentServer
from rocketmq_a2a.transport.rocketmq_transport import RocketMQTransport
from rocketmq_a2a.transport.rocketmq_transport_config import RocketMQTransportConfig

ENDPOINT, NAMESPACE = sys.argv[1:]


def agent() -> RocketMQAgentServer:
    config = AgentServerConfig("Tasks", "AgentGroup", "ServerAnswers", "ServerGroup")
    return RocketMQAgentServer(config, StandaloneRequestHandler(), ENDPOINT, "", "", NAMESPACE)


def caller(name: str) -> RocketMQTransport:
    card = SimpleNamespace(preferred_transport="RocketMQ", url=f"http://{ENDPOINT}/{NAMESPACE}/Tasks")
    config = RocketMQTransportConfig(
        endpoint=ENDPOINT, work_agent_response_topic="Answers", work_agent_response_group_id=f"Callers{name}",
        namespace=NAMESPACE, lite_topic=name,
    )  # fmt: skip
    return RocketMQTransport(config, card)


def request(text: str, number: int) -> SendMessageRequest:
    part = Part(text=text)
    return SendMessageRequest(message=Message(message_id=f"m{number}", role=Role.ROLE_USER, parts=[part]))


async def talk() -> dict[str, list[str]]:
    answers: dict[str, list[str]] = {}
    callers = {name: caller(name) for name in ("Alice", "Bob")}

    async def one(name: str, transport: RocketMQTransport) -> None:
        for number in range(3):
            answer = await transport.send_message(request(f"{name} {number}", number))
            answers.setdefault(name, []).append(MessageToJson(answer, indent=None))
            task = await transport.get_task(GetTaskRequest(id=answer.task.id))
            answers[name].append(MessageToJson(task, indent=None))
        stream = transport.send_message_streaming(request(f"{name} s", 9))
        chunks = [MessageToJson(chunk, indent=None) async for chunk in stream]
        answers[name].append(" ".join(chunks))

    await asyncio.gather(*(one(name, transport) for name, transport in callers.items()))
    return answers


server = agent()
server.start()
print(json.dumps(asyncio.run(talk())), flush=True)
os._exit(0)  # its threads do not end
