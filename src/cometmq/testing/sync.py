"""A cluster that runs in a thread, for tests that have no event loop."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

from cometmq.client.consumer.listener import Verdict
from cometmq.client.consumer.subscription import ALL, TAG
from cometmq.client.send_result import SendResult
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.message.message import Message, MessageExt
from cometmq.testing.clock import VirtualClock
from cometmq.testing.cluster import Cluster
from cometmq.testing.collection import WITHIN_SECONDS
from cometmq.testing.inbox import Inbox

P = ParamSpec("P")
R = TypeVar("R")

THREAD: Final = "cometmq-cluster"


def run_on_loop(
    method: Callable[Concatenate[Cluster, P], Coroutine[Any, Any, object]],
) -> Callable[Concatenate[SyncCluster, P], None]:
    """Wrap a coroutine method of the cluster so that it runs on the cluster's loop and the caller waits for it."""

    @functools.wraps(method)
    def call(self: SyncCluster, /, *args: P.args, **kwargs: P.kwargs) -> None:
        self.call(method(self.cluster, *args, **kwargs))

    return call


class SyncCluster:
    """:class:`~cometmq.testing.cluster.Cluster` in a thread: ``with SyncCluster() as cluster:``.

    Applications connect to :attr:`namesrv_address` with any client from any thread. A
    :class:`~cometmq.testing.VirtualClock` is the clock of the cluster only: clients in other threads use real time, and
    moving the clock does not wait for them.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        slaves: int = 0,
        clock: Clock = SYSTEM_CLOCK,
        data: Path | None = None,
        broker_keys: Mapping[str, str] | None = None,
        links: bool = False,
        tls: bool = False,
        accounts: Sequence[Mapping[str, Any]] | None = None,
        replicas: int = 0,
    ) -> None:
        self.clock = clock
        self.cluster: Final = Cluster(
            brokers,
            slaves=slaves,
            clock=clock,
            data=data,
            broker_keys=broker_keys,
            links=links,
            tls=tls,
            accounts=accounts,
            replicas=replicas,
        )
        """The cluster itself; use it only on its own loop, through :meth:`call` or :meth:`run`."""
        self._loop = asyncio.new_event_loop()  # not uvloop's, which cannot be asked whether it is idle
        self._thread = threading.Thread(target=self._loop.run_forever, name=THREAD, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.call(self.cluster.start())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        try:
            self.call(self._stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _stop(self) -> None:
        try:
            await self.cluster.stop()
        finally:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await asyncio.get_running_loop().shutdown_default_executor()

    def call(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine on the cluster's loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def run(self, work: Callable[[Cluster], R]) -> R:
        """Call a function on the cluster's loop and pass it the cluster: ``run(lambda cluster:
        cluster.link(0).cut())``.
        """

        async def call() -> R:
            return work(self.cluster)

        return self.call(call())

    # --- the cluster -----------------------------------------------------------------------------
    @property
    def namesrv_address(self) -> str:
        """``host:port`` for clients."""
        return self.cluster.namesrv_address

    create_topic = run_on_loop(Cluster.create_topic)

    def send(self, message: Message) -> SendResult:
        """Send a message, as another application would."""
        return self.call(self.cluster.send(message))

    def inbox(
        self,
        *topics: str,
        expression: str = ALL,
        expression_type: str = TAG,
        group: str | None = None,
        answer: Verdict = None,
    ) -> SyncInbox:
        """Return a consumer that collects messages: ``with cluster.inbox("orders") as inbox:``."""

        async def make() -> Inbox:
            return self.cluster.inbox(
                *topics, expression=expression, expression_type=expression_type, group=group, answer=answer
            )

        return SyncInbox(self, self.call(make()))

    start_broker = run_on_loop(Cluster.start_broker)
    stop_broker = run_on_loop(Cluster.stop_broker)
    restart_broker = run_on_loop(Cluster.restart_broker)
    kill_broker = run_on_loop(Cluster.kill_broker)
    start_slave = run_on_loop(Cluster.start_slave)
    kill_slave = run_on_loop(Cluster.kill_slave)
    promote_slave = run_on_loop(Cluster.promote_slave)
    start_member = run_on_loop(Cluster.start_member)
    hand_over = run_on_loop(Cluster.hand_over)

    def kill_master(self, index: int = 0) -> str:
        """Kill a broker's master like SIGKILL, and return its name; see :meth:`Cluster.kill_master`."""
        return self.call(self.cluster.kill_master(index))

    def is_in_sync(self, index: int = 0) -> bool:
        """Return whether a broker has a master, and all of its running members are in sync."""
        return self.run(lambda cluster: cluster.is_in_sync(index))

    def empty_slave(self, index: int = 0, number: int = 1) -> None:
        """Remove a stopped slave's store."""
        self.run(lambda cluster: cluster.empty_slave(index, number))

    def pause_broker(self, index: int) -> ExitStack:
        """Suspend a broker like SIGSTOP; see :meth:`Cluster.pause_broker`."""
        self.run(lambda cluster: cluster.pause_broker(index))
        until = ExitStack()
        until.callback(self.resume_broker, index)
        return until

    def resume_broker(self, index: int) -> None:
        """Resume a paused broker."""
        self.run(lambda cluster: cluster.resume_broker(index))

    def run_for(self, seconds: float) -> None:
        """Let time pass on the cluster's clock."""
        self.call(self.clock.run_for(seconds) if isinstance(self.clock, VirtualClock) else self.clock.sleep(seconds))

    def skip(self, seconds: float) -> None:
        """Move the date from alarm to alarm; see :meth:`VirtualClock.skip`.

        :raises TypeError: the cluster uses the real clock.
        """
        if not isinstance(self.clock, VirtualClock):
            raise TypeError("the real clock cannot be moved: give the cluster a VirtualClock (marker: real_time=False)")
        self.call(self.clock.skip(seconds))


class SyncInbox:
    """:class:`~cometmq.testing.inbox.Inbox` for tests that have no event loop."""

    def __init__(self, cluster: SyncCluster, inbox: Inbox) -> None:
        self._cluster = cluster
        self._inbox = inbox

    def __enter__(self) -> Self:
        self._cluster.call(self._inbox.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.call(self._inbox.__aexit__())

    @property
    def messages(self) -> list[MessageExt]:
        """All messages that have arrived, in order."""
        return list(self._inbox.messages)

    def expect(self, count: int, within: float | timedelta = WITHIN_SECONDS) -> list[MessageExt]:
        """Return the next ``count`` messages; see :meth:`Inbox.expect`.

        :raises ExpectationError: fewer messages arrived.
        """
        return self._cluster.call(self._inbox.expect(count, within))

    def expect_none(self, within: float | timedelta = WITHIN_SECONDS) -> None:
        """Let time pass and check that no message arrives; see :meth:`Inbox.expect_none`.

        :raises ExpectationError: a message arrives, or was already waiting.
        """
        self._cluster.call(self._inbox.expect_none(within))
