"""Where the other brokers and their Python clients are on this machine, and how they get there."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import kafka_jars

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "build" / "brokers"
PYTHON_PACKAGES = CACHE / "python"

NATS_VERSION = "v2.15.2"
NATS_MODULE = f"github.com/nats-io/nats-server/v2@{NATS_VERSION}"
REDIS_PACKAGES = ("redis-server", "redis-tools", "libjemalloc2", "liblzf1")
"""`redis-tools` has the server's program; the libraries are what a Debian without Redis lacks."""
CLIENTS = ("nats-py==2.16.0", "redis==8.1.0")
INSTALL_S = 900.0
VERSION_S = 30.0
HOW = "`make bench-peers` gets it"


class BrokerMissingError(Exception):
    """A broker, or a client of it, is not on this machine; the text says what to do."""


def nats_server() -> Path:
    """Return the program. Raises `BrokerMissingError`."""
    return _program("nats-server", CACHE / "bin" / "nats-server")


def redis_server() -> Path:
    """Return the program. Raises `BrokerMissingError`."""
    return _program("redis-server", CACHE / "redis" / "usr" / "bin" / "redis-server")


def _program(name: str, own: Path) -> Path:
    """Return what the bench installed, else what is on the path."""
    if own.exists():
        return own
    found = shutil.which(name)
    if found is None:
        raise BrokerMissingError(f"no {name} found: {HOW}, or put one on the PATH")
    return Path(found)


def environment(program: Path) -> dict[str, str]:
    """Return the environment to run a program in: unpacked packages have their libraries beside it."""
    variables = dict(os.environ)
    if program.is_relative_to(CACHE):
        folders = sorted({str(path.parent) for path in (CACHE / "redis").glob("usr/lib/**/*.so*")})
        variables["LD_LIBRARY_PATH"] = os.pathsep.join([*folders, variables.get("LD_LIBRARY_PATH", "")]).strip(
            os.pathsep
        )
    return variables


def version(program: Path) -> str:
    """Return what it says of itself: `v2.15.2`, `7.0.15`."""
    done = subprocess.run(
        [program, "--version"], capture_output=True, text=True, timeout=VERSION_S, check=True, env=environment(program)
    )
    words = done.stdout.split()
    return next((word[2:] for word in words if word.startswith("v=")), words[-1])


def versions(names: Sequence[str]) -> dict[str, str]:
    """Return which versions of the other brokers there are, of those named."""
    found = {}
    for title, find in (("nats", nats_server), ("redis", redis_server)):
        if any(name.startswith(title) for name in names):
            with contextlib.suppress(BrokerMissingError):
                found[f"{title}-server"] = version(find())
    if "kafka" in names:
        found["Apache Kafka"] = kafka_jars.NEWEST
    return found


def use_python_client(module: str) -> None:
    """Let a client's module be imported from where the bench installed it. Raises `BrokerMissingError`."""
    if str(PYTHON_PACKAGES) not in sys.path:
        sys.path.append(str(PYTHON_PACKAGES))  # last: what the project itself uses stays first
    if importlib.util.find_spec(module) is None:
        raise BrokerMissingError(f"no Python client {module} found: {HOW}")


def install() -> list[str]:
    """Get what is not there, into build/brokers, without root and without starting anything. Returns what failed."""
    failures = []
    for name, find, get in (("nats-server", nats_server, _get_nats), ("redis-server", redis_server, _get_redis)):
        try:
            print(f"{name}: {find()}", flush=True)
        except BrokerMissingError:
            try:
                get()
                print(f"{name}: {find()}", flush=True)
            except (BrokerMissingError, OSError, subprocess.SubprocessError) as error:
                failures.append(f"{name}: {error}")
    try:
        for module in ("nats", "redis"):
            use_python_client(module)
        print(f"Python clients: {PYTHON_PACKAGES}")
    except BrokerMissingError:
        try:
            _get_clients()
            print(f"Python clients: {PYTHON_PACKAGES}")
        except (OSError, subprocess.SubprocessError) as error:
            failures.append(f"{', '.join(CLIENTS)}: {error}")
    return failures


def _get_nats() -> None:
    go = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    if go is None:
        raise BrokerMissingError(f"no Go found to build it with; install Go, then {HOW}")
    variables = {**os.environ, "GOBIN": str(CACHE / "bin")}
    subprocess.run([go, "install", NATS_MODULE], env=variables, timeout=INSTALL_S, check=True)


def _get_redis() -> None:
    """Unpack Debian's packages: to install them would start a server of the system on its usual port."""
    apt, dpkg = shutil.which("apt-get"), shutil.which("dpkg-deb")
    if apt is None or dpkg is None:
        raise BrokerMissingError("it is taken from Debian's packages, and this is no Debian; install it, on the PATH")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        command = [apt, "--quiet", "--quiet", "-o", "APT::Sandbox::User=root", "download", *REDIS_PACKAGES]
        subprocess.run(command, cwd=folder, timeout=INSTALL_S, check=True)
        for package in sorted(Path(folder).glob("*.deb")):
            subprocess.run([dpkg, "--extract", package, f"{folder}/unpacked"], timeout=INSTALL_S, check=True)
        Path(folder, "unpacked").rename(CACHE / "redis")


def _get_clients() -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(PYTHON_PACKAGES), *CLIENTS]
    subprocess.run(command, timeout=INSTALL_S, check=True)
