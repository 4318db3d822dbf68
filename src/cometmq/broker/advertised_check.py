"""Checks that clients which connect to the broker's advertised addresses reach this broker.

A wrong address is the most common fault in containers: the nameserver answers, but no client can send. The broker
therefore connects to each of its addresses as a client does, when it starts and then every five minutes. It recognizes
itself by its start time, so that it also detects another broker with the same name. The members of a set with failover
may share the address of a listener.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cometmq.broker.config import BrokerConfig
from cometmq.clock import Clock
from cometmq.message.hosts import own_ip, parse_address, parsed_ip, split_addresses
from cometmq.properties_file import parse_properties
from cometmq.remoting.bodies import BodyError, KVTable, decode_body
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.errors import RemotingConnectError, RemotingError
from cometmq.remoting.security import Security

_log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 300.0
"""Pause between two checks in seconds if all addresses are right, or after a fault has been logged."""
FIRST_PAUSES_S: Final = (1.0, 2.0, 4.0)
"""Pauses in seconds after the first failures, which are not logged."""
_REMEDY: Final = (
    "give the address that clients connect to with --advertise HOST[:PORT] (advertisedListeners); "
    "cometmq doctor --cluster checks it from a client's machine"
)
_ELSEWHERE: Final = "nothing answers at that address on this machine"
"""Result for a listener with a loopback address that may be a tunnel or a published container port."""


class AdvertisedCheck:
    """Checks the advertised addresses and logs the results.

    :param addresses: ``host:port`` by listener.
    :param boot_ms: the start time in this broker's runtime information.
    """

    def __init__(
        self, config: BrokerConfig, addresses: Mapping[str, str], boot_ms: int, security: Security, *, clock: Clock
    ) -> None:
        self._config = config
        self._addresses = addresses
        self._boot_ms = boot_ms
        self._security = security
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._logged: dict[str, str] = {}
        self.wrong: dict[str, str] = {}
        """The fault of each listener with a wrong address, by listener name."""
        self.looked = asyncio.Event()
        """Set once the result of a check has been logged."""

    @property
    def addresses(self) -> Mapping[str, str]:
        """The addresses to check, as ``host:port`` by listener name."""
        return self._addresses

    def start(self) -> None:
        """Log faults that can be found without connecting; start the checks if another machine may use an address."""
        for line in hints(self._config, self._addresses, in_container=in_container()):
            _log.warning("%s", line)
        if any(parse_address(address)[0] != self._config.bind_address for address in self._addresses.values()):
            self._task = asyncio.get_running_loop().create_task(self._run(), name="check advertised addresses")

    async def stop(self) -> None:
        """Stop the checks."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        pauses = iter(FIRST_PAUSES_S)
        while True:
            found = await self._check_addresses()
            self.wrong = {name: reason for name, reason in found.items() if reason not in ("", _ELSEWHERE)}
            pause = LOOK_SECONDS
            if any(found.values()) and (early := next(pauses, None)) is not None:
                pause = early
            else:
                self._log_faults(found)
                self.looked.set()
            await self._clock.sleep(pause)

    async def _check_addresses(self) -> dict[str, str]:
        async with RemotingClient(clock=self._clock, security=self._security) as client:
            found = await asyncio.gather(*(self._find_fault(client, *named) for named in self._addresses.items()))
        return dict(zip(self._addresses, found, strict=True))

    async def _find_fault(self, client: RemotingClient, name: str, address: str) -> str:
        """Return what is wrong with an address, or an empty string if the address is right or cannot be judged."""
        try:
            answer = await client.invoke(address, RequestCode.GET_BROKER_RUNTIME_INFO)
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return "what answers there is no broker"
            if answer.code != ResponseCode.SUCCESS:
                return ""  # a broker with accounts, which tells strangers nothing
            if decode_body(KVTable, answer.body).table.get("bootTimestamp") == str(self._boot_ms):
                return ""
            answer = await client.invoke(address, RequestCode.GET_BROKER_CONFIG)
            keys = {key: value for _, key, value in parse_properties(answer.body.decode("utf-8", "replace"))}
        except RemotingConnectError as error:
            if name and _is_loopback(parse_address(address)[0]):
                return _ELSEWHERE
            return f"it cannot be reached from this machine ({error.message})"
        except (RemotingError, BodyError) as error:
            return f"what answers there is no broker ({error.message})"
        if "brokerName" not in keys:
            return "what answers there is no broker"
        if name and self._config.failover and self._is_of_this_set(keys):
            return ""  # an address of the set, such as a Service that selects the pod of its master
        return (
            f"broker {keys['brokerName']} of cluster {keys.get('brokerClusterName')} answers there instead of this one"
        )

    def _is_of_this_set(self, keys: Mapping[str, str]) -> bool:
        config = self._config
        same = (("brokerClusterName", config.broker_cluster_name), ("brokerName", config.broker_name))
        return all(keys.get(key) == value for key, value in same)

    def _log_faults(self, found: Mapping[str, str]) -> None:
        for name, address in self._addresses.items():
            reason = found[name]
            if reason == self._logged.get(name):
                continue
            self._logged[name] = reason
            whose = f"clients of the listener {name}" if name else "clients"
            if reason == _ELSEWHERE:
                _log.info(
                    "%s get the address %s, which is their own machine; check it there with cometmq doctor --cluster",
                    whose,
                    address,
                )
            elif reason:
                _log.warning("the advertised address %s for %s is wrong: %s; %s", address, whose, reason, _REMEDY)
            else:
                _log.info("%s reach this broker at %s", whose, address)


def hints(config: BrokerConfig, addresses: Mapping[str, str], *, in_container: bool) -> list[str]:
    """Return reasons why clients probably cannot use the address, although this machine can reach it."""
    host = parse_address(addresses[""])[0]
    nameservers = [parse_address(address)[0] for address in split_addresses(config.namesrv_addr)]
    if _is_loopback(host) and any(not _is_loopback(nameserver) for nameserver in nameservers):
        return [f"clients on other machines get the address {addresses['']}, which is their own machine; {_REMEDY}"]
    if in_container and not _is_loopback(host) and host == own_ip():
        return [
            f"clients get the address {addresses['']} of this container, which other machines may not reach; {_REMEDY}"
        ]
    return []


def in_container() -> bool:
    """Return whether this process appears to run in a container."""
    marks = (Path("/.dockerenv"), Path("/run/.containerenv"))
    return "KUBERNETES_SERVICE_HOST" in os.environ or any(mark.exists() for mark in marks)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    ip = parsed_ip(host)
    return ip is not None and ip.is_loopback
