"""The cluster page: its brokers, their figures, warnings with the next step, and plots of the last hour."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from starlette.responses import JSONResponse, Response

from cometmq.client.errors import BrokerError
from cometmq.console.live import KEEP_ALIVE_SECONDS, event, event_stream
from cometmq.console.page import Ask, NotFoundError, address_of, page
from cometmq.console.sampler import Sample, take_sample
from cometmq.errors import CometMQError
from cometmq.message.names import MASTER_ID
from cometmq.remoting.admin_bodies import HARuntimeInfo
from cometmq.remoting.errors import RemotingError


async def overview(ask: Ask) -> Response:
    """Show the cluster's overview page."""
    sampler = ask.console.sampler
    health = sampler.examine()
    sample = await _sample(ask)
    template = "cluster/state.html" if ask.is_part else "cluster/overview.html"
    return ask.page(template, sample=sample, health=health, nameservers=ask.console.nameservers)


async def _sample(ask: Ask) -> Sample:
    """Return the newest sample. If the visitor's account is not the console's account, take a new sample with it."""
    latest = ask.console.sampler.latest
    if latest is not None and not ask.visitor.has_own_connections:
        return latest
    return await take_sample(ask.admin, ask.console.clock.now_ms())


async def history(ask: Ask) -> Response:
    """Return the figures for the last hour."""
    return JSONResponse([sample.figures() for sample in ask.console.sampler.samples if not sample.failure])


async def live(ask: Ask) -> Response:
    """Send each new sample's figures to the browser."""
    return event_stream(_live(ask))


async def _live(ask: Ask) -> AsyncIterator[bytes]:
    console = ask.console
    try:
        with console.streams.one(address_of(ask.request)):
            stopping = asyncio.create_task(console.streams.stopping.wait())
            try:
                while not stopping.done():
                    following = asyncio.create_task(console.sampler.following())
                    await asyncio.wait(
                        {following, stopping}, timeout=KEEP_ALIVE_SECONDS, return_when=asyncio.FIRST_COMPLETED
                    )
                    if not following.done():
                        following.cancel()
                        yield b": still here\n\n"
                        continue
                    sample = following.result()
                    yield event("sample", {"failure": sample.failure, **sample.figures(), "brokers": _lines(sample)})
            finally:
                stopping.cancel()
    except CometMQError as error:
        yield event("refused", str(error))


def _lines(sample: Sample) -> dict[str, dict[str, float | None]]:
    found = ((line.key, line.status) for line in sample.brokers if line.status is not None)
    return {
        key: {"in": status.in_per_s, "out": status.out_per_s, "today": status.messages_today} for key, status in found
    }


async def broker(ask: Ask) -> Response:
    """Show one broker: its runtime information and its slaves."""
    name, broker_id = ask.path("name"), ask.path("broker_id")
    data = (await ask.admin.cluster_info()).broker_addr_table.get(name)
    address = data.broker_addrs.get(int(broker_id)) if data is not None and broker_id.isdecimal() else None
    if data is None or address is None:
        raise NotFoundError(
            ask.t("no broker {name} with id {number} is registered", name=name, number=broker_id),
            next_step=ask.t("the cluster page lists all brokers"),
        )
    table = await ask.admin.runtime_info(address)
    replication: HARuntimeInfo | None = None
    with suppress(BrokerError, RemotingError):  # brokers of RocketMQ 4 do not report their slaves
        replication = await ask.admin.ha_status(address)
    return ask.page(
        "cluster/broker.html",
        name=name,
        broker_id=broker_id,
        is_master=int(broker_id) == MASTER_ID,
        address=address,
        cluster=data.cluster,
        table=sorted(table.items()),
        replication=replication,
    )


ROUTES = (
    page("/", overview),
    page("/cluster/history", history),
    page("/cluster/live", live),
    page("/brokers/{name}/{broker_id}", broker),
)
