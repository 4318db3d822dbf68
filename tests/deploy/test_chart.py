"""The Helm chart: its linter, its schema, those of Kubernetes, and the commands of its pods. Skipped without helm.

``go install helm.sh/helm/v3/cmd/helm@v3.14.4`` makes it; the package ``kubernetes-validate`` has Kubernetes' schemas.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from cometmq.broker.config import BrokerConfig
from cometmq.broker.failover.engines.pod_labels import MASTER, ROLE_LABEL
from cometmq.options import options_of

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "cometmq"
SETS = "StatefulSet"
WITH_PASSWORD = ("--set", "console.passwordSecretName=password")
needs_helm = pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["helm", *words], capture_output=True, text=True, check=False)


def rendered(*words: str) -> list[dict[str, Any]]:
    done = helm("template", "shop", str(CHART), "--kube-version", "1.29.0", *WITH_PASSWORD, *words)
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found]


def test_the_schema_has_every_value() -> None:
    def names(values: Any, schema: Any) -> None:
        for key, value in values.items():
            assert key in schema["properties"], key
            if isinstance(value, dict) and "properties" in schema["properties"][key]:
                names(value, schema["properties"][key])

    values = yaml.safe_load((CHART / "values.yaml").read_text())
    names(values, json.loads((CHART / "values.schema.json").read_text()))


@needs_helm
def test_the_linter_finds_nothing() -> None:
    assert "0 chart(s) failed" in helm("lint", str(CHART), *WITH_PASSWORD).stdout


@needs_helm
@pytest.mark.parametrize(
    "wrong",
    ["broker.pairs=0", "clusterName=a b", "broker.config.x=it's", "outside.enabled=true", "nothing=1"],
)
def test_wrong_values_are_refused(wrong: str) -> None:
    done = helm("template", "shop", str(CHART), "--kube-version", "1.29.0", *WITH_PASSWORD, "--set", wrong)
    assert done.returncode != 0
    assert "values don't meet the specifications" in done.stderr


@needs_helm
@pytest.mark.parametrize("version", ["1.25", "1.34"])
def test_kubernetes_knows_every_field_of_what_it_makes(version: str, tmp_path: Path) -> None:
    validate = shutil.which("kubernetes-validate", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if validate is None:
        pytest.skip("kubernetes-validate is not installed (pip install kubernetes-validate)")
    made = [
        *rendered("--set", "outside.enabled=true,outside.host=node.example.com,broker.pairs=2"),
        *rendered("--set", "broker.failover.enabled=true,broker.pairs=2,broker.slaves=2"),
        *rendered("--set", "tls.secretName=tls,grpc.secretName=proxy,grpc.replicas=2,grpc.serviceType=LoadBalancer"),
    ]
    (tmp_path / "made.yaml").write_text(yaml.safe_dump_all(made))
    words = [validate, "--strict", "--kubernetes-version", version, str(tmp_path / "made.yaml")]
    checked = subprocess.run(words, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
    assert checked.stdout.count(" passed ") == len(made), "it knows each kind"


def words_of(container: dict[str, Any], pod: str, directory: Path) -> list[str]:
    """Run a container's command with a program that prints its words."""
    fake = directory / "cometmq"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    environment = {"PATH": f"{directory}:{os.environ['PATH']}", "HOSTNAME": pod}
    done = subprocess.run(
        [*container["command"], *container["args"]], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@needs_helm
def test_the_pods_of_a_pair_are_a_master_and_its_slave_with_addresses_of_their_own(tmp_path: Path) -> None:
    outside = ("--set", "outside.enabled=true,outside.host=node.example.com,broker.pairs=2")
    sets = {
        found["metadata"]["name"]: found["spec"]["template"]["spec"]["containers"][0]
        for found in rendered(*outside)
        if found["kind"] == "StatefulSet"
    }
    assert set(sets) == {"shop-namesrv", "shop-broker-0", "shop-broker-1"}
    for index, role, port in ((0, "ASYNC_MASTER", 30913), (1, "SLAVE", 30914)):
        words = words_of(sets["shop-broker-1"], f"shop-broker-1-{index}", tmp_path)
        assert f"shop-broker-1-{index}.shop-broker-1.default.svc" in words
        assert f"outside=node.example.com:{port}" in words
        assert {f"brokerRole={role}", f"brokerId={index}", "brokerName=broker-1"} <= set(words)


SET = ("--set", "broker.failover.enabled=true,broker.slaves=2,broker.failover.bootstrap=true")


@needs_helm
def test_the_pods_of_a_set_have_names_and_no_roles_and_only_the_first_one_founds_it(tmp_path: Path) -> None:
    (found,) = (one for one in rendered(*SET) if one["metadata"]["name"] == "shop-broker-0" and one["kind"] == SETS)
    assert found["spec"]["replicas"] == 3
    (container,) = found["spec"]["template"]["spec"]["containers"]
    for index in range(3):
        words = words_of(container, f"shop-broker-0-{index}", tmp_path)
        assert {"failover=kubernetes", f"failoverMember=shop-broker-0-{index}", "brokerName=broker-0"} <= set(words)
        assert "set=shop-broker-0-master.default.svc" in words
        assert not [word for word in words if word.startswith(("brokerRole", "brokerId"))]
        assert ("--bootstrap" in words) == (index == 0)
        keys = {word.partition("=")[0] for before, word in pairwise(words) if before == "-o"}
        assert keys <= set(options_of(BrokerConfig))


@needs_helm
def test_members_of_a_set_may_change_leases_and_label_their_own_pods_only() -> None:
    made = {(one["kind"], one["metadata"]["name"]): one for one in rendered(*SET)}
    pod = made[SETS, "shop-broker-0"]["spec"]["template"]["spec"]
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("shop-broker-0", True)
    binding = made["RoleBinding", "shop-broker-0"]
    assert (binding["roleRef"]["name"], binding["subjects"][0]["name"]) == ("shop-broker-0", "shop-broker-0")
    leases, pods = made["Role", "shop-broker-0"]["rules"]
    assert leases["verbs"] == ["get", "list", "watch", "create", "update"]
    assert (pods["verbs"], pods["resourceNames"]) == (["patch"], [f"shop-broker-0-{index}" for index in range(3)])
    labels = made[SETS, "shop-broker-0"]["spec"]["template"]["metadata"]["labels"]
    selector = made["Service", "shop-broker-0-master"]["spec"]["selector"]
    assert selector.items() - labels.items() == {(ROLE_LABEL, MASTER)}
    assert made["PodDisruptionBudget", "shop-broker-0"]["spec"]["maxUnavailable"] == 1


@needs_helm
def test_without_failover_no_pod_has_an_account() -> None:
    for found in rendered():
        assert found["kind"] not in ("Role", "RoleBinding", "ServiceAccount")
        if found["kind"] == SETS:
            assert found["spec"]["template"]["spec"]["automountServiceAccountToken"] is False


@needs_helm
def test_a_member_that_catches_up_is_not_restarted(tmp_path: Path) -> None:
    """Only ``/readyz`` depends on what a member does. ``/healthz`` answers in every state, also while it changes."""
    (found,) = (one for one in rendered(*SET) if one["metadata"]["name"] == "shop-broker-0" and one["kind"] == SETS)
    (container,) = found["spec"]["template"]["spec"]["containers"]
    for probe in ("startupProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert found["spec"]["podManagementPolicy"] == "Parallel", "a member starts although another one is not ready"


@needs_helm
def test_the_endpoint_of_rocketmq_5_has_keys_that_it_knows_and_the_files_that_they_name() -> None:
    words = ("--set", "tls.secretName=tls,grpc.secretName=proxy,grpc.replicas=2,grpc.serviceType=LoadBalancer")
    (found,) = (
        one for one in rendered(*words) if (one["kind"], one["metadata"]["name"]) == ("Deployment", "shop-grpc")
    )
    (container,) = found["spec"]["template"]["spec"]["containers"]
    asked = subprocess.run([sys.executable, "-m", "cometmq", "proxy", "--help-config"], capture_output=True, text=True)
    known = {line.partition("=")[0] for line in asked.stdout.splitlines()}
    options = [word.removeprefix("--option=") for word in container["args"] if word.startswith("--option=")]
    assert {option.partition("=")[0] for option in options} <= known
    assert len(options) == 5
    assert "--config=/secret/rmq-proxy.json" in container["args"]
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/tmp", "/secret", "/tls"]
    assert {volume["name"] for volume in found["spec"]["template"]["spec"]["volumes"]} == {"tmp", "secret", "tls"}


@needs_helm
def test_each_pod_runs_without_rights_and_is_asked_whether_it_is_ready() -> None:
    for found in rendered("--set", "serviceMonitor.enabled=true"):
        if found["kind"] not in ("StatefulSet", "Deployment"):
            continue
        pod = found["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in pod["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert "readinessProbe" in container
            assert "livenessProbe" in container
