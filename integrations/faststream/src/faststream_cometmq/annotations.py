"""The annotations by which handlers ask for their message and their broker."""

from __future__ import annotations

from typing import Annotated

from faststream._internal.context import Context
from faststream.annotations import ContextRepo, Logger
from faststream.params import NoCast

from faststream_cometmq.broker import RocketMQBroker as _Broker
from faststream_cometmq.message import RocketMQMessage as _Message

__all__ = ("ContextRepo", "Logger", "NoCast", "RocketMQBroker", "RocketMQMessage")

RocketMQMessage = Annotated[_Message, Context("message")]
RocketMQBroker = Annotated[_Broker, Context("broker")]
