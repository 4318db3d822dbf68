"""A set whose vote is kept by Kubernetes' leases, and the labels by which a Service finds its master."""

from __future__ import annotations

from pathlib import Path

from tests.broker.member.sets import lease_ms, member_set, until
from tests.failover.kubernetes_server import TOKEN, KubernetesServer, kubernetes

from cometmq.broker.failover.engines.kubernetes import KubernetesEngine, KubernetesOptions
from cometmq.broker.failover.engines.pod_labels import MASTER, ROLE_LABEL, SLAVE
from cometmq.broker.member.set_member import SetMember

NAMES = "abc"


def roles(server: KubernetesServer) -> dict[str, str | None]:
    return {name: labels.get(ROLE_LABEL) for name, labels in server.pods.items()}


def with_master(name: str) -> dict[str, str]:
    return {other: MASTER if other == name else SLAVE for other in NAMES}


async def test_a_killed_master_is_replaced_and_its_pod_loses_the_label(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    async with kubernetes() as server, member_set(tmp_path, 0) as members:
        server.pods = {name: {} for name in NAMES}
        for name in NAMES:
            place = (server.endpoint, "mq", "DefaultCluster", "set", str(tmp_path / "token"))
            options = KubernetesOptions(*place, lease_s=lease_ms() / 1000)
            config = members.config(name, failover="kubernetes")
            members.members[name] = SetMember(config, engine=KubernetesEngine(options))
            await members.members[name].start()
        await until(lambda: members.master is not None)
        first = members.master
        assert first is not None
        await until(lambda: roles(server) == with_master(first.machine.me.name))
        document = first.machine.view
        await until(lambda: document.document is not None and len(document.document.in_sync) == len(NAMES))
        await members.kill(first.machine.me.name)
        await until(lambda: members.master is not None)
        second = members.master
        assert second is not None
        assert second is not first
        await until(lambda: roles(server) == with_master(second.machine.me.name))
