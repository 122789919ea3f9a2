"""A pytest plugin, given by -p to the suite of a foreign client: points it at a node and writes down what came of it.

It runs in an interpreter that need not know Semel, so it imports nothing of ours. `SEMEL_CLIENT` says how it gets
its cluster, `SEMEL_LISTENERS` where the node is for each of Kafka's ways to connect, `SEMEL_CERTIFICATES` and
`SEMEL_TOOLS` where certificates and Kafka's tools are, `SEMEL_PLAN` which tests to run, `SEMEL_EVENTS` where to write.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Generator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

CLIENT = os.environ["SEMEL_CLIENT"]
LISTENERS: Mapping[str, str] = json.loads(os.environ["SEMEL_LISTENERS"])
PORTS = {name: int(address.rpartition(":")[2]) for name, address in LISTENERS.items()}
HOST = LISTENERS["plaintext"].rpartition(":")[0]
CERTIFICATES = Path(os.environ["SEMEL_CERTIFICATES"])
TOOLS = Path(os.environ["SEMEL_TOOLS"])
PLAN = frozenset(json.loads(os.environ["SEMEL_PLAN"]))
DETAIL_LENGTH_MAX = 300


class LoginCluster:
    """Stands for the cluster with users that confluent-kafka-python starts. No other may be wanted."""

    def __init__(self, *, sasl_mechanism: str | None = None, sasl_users: str = "", **_: Any) -> None:
        if sasl_mechanism is None:
            pytest.skip("wants to start a cluster of its own")
        user, _, password = sasl_users.partition("=")
        self._settings = {
            "bootstrap.servers": LISTENERS["sasl_plaintext"],
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": sasl_mechanism,
            "sasl.username": user,
            "sasl.password": password,
        }

    def wait_operational(self) -> None:
        """The node is ready."""

    def client_conf(self) -> dict[str, str]:
        return dict(self._settings)

    def stop(self, *, cleanup: bool) -> None:
        """The node is stopped by who started it."""


def without_trivup() -> None:
    """confluent-kafka-python imports its cluster tool though BROKERS names a cluster."""
    for name in ("trivup", "trivup.clusters", "trivup.clusters.KafkaCluster"):
        sys.modules.setdefault(name, ModuleType(name))
    sys.modules["trivup.clusters.KafkaCluster"].KafkaCluster = LoginCluster  # type: ignore[attr-defined]


def without_broker() -> None:
    """Give kafka-python's suite the node where it would start a broker with one listener."""
    made = sys.modules.get("test.integration.fixtures")
    if made is None:
        return
    import py

    def instance(
        cls: Any,
        broker_id: int,
        transport: str = "PLAINTEXT",
        sasl_mechanism: str | None = None,
        partitions: int = 4,
        **_: Any,
    ) -> Any:
        broker = cls(
            HOST,
            PORTS[transport.lower()],
            broker_id,
            transport=transport,
            sasl_mechanism=sasl_mechanism,
            partitions=partitions,
            external=True,
            tmp_dir=py.path.local.mkdtemp(),
        )
        broker.ssl_dir = str(CERTIFICATES)
        broker.jaas_config = broker._jaas_config()
        return broker

    made.KafkaFixture.instance = classmethod(instance)  # type: ignore[attr-defined]


class Container:
    """Stands for the container that aiokafka's suite calls Kafka's tools in."""

    @staticmethod
    def exec_run(command: str) -> tuple[int, bytes]:
        tool, *words = shlex.split(command)
        done = subprocess.run(
            [TOOLS / "bin" / Path(tool).name, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        return done.returncode, done.stdout


AIOKAFKA_FIXTURES: dict[str, Any] = {
    "docker": None,
    "kafka_image": "node",
    "ssl_folder": CERTIFICATES,
    "kafka_server": SimpleNamespace(
        host=HOST,
        port=PORTS["plaintext"],
        ssl_port=PORTS["ssl"],
        sasl_plain_port=PORTS["sasl_plaintext"],
        sasl_ssl_port=PORTS["sasl_ssl"],
        container=Container(),
        hosts=[LISTENERS["plaintext"]],
    ),
    "kerberos_utils": None,
}
"""What aiokafka's suite takes from a container."""
NODE_FIXTURE = "kafka_server"
"""Tests of aiokafka without it need no broker."""

FIXTURES = AIOKAFKA_FIXTURES if CLIENT == "aiokafka" else {}
if CLIENT == "confluent-kafka-python":
    without_trivup()


def write(**event: Any) -> None:
    with open(os.environ["SEMEL_EVENTS"], "a") as events:
        events.write(json.dumps(event) + "\n")


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> Any:
    """Give our value for a fixture of theirs."""
    if fixturedef.argname not in FIXTURES:
        return None
    value = FIXTURES[fixturedef.argname]
    fixturedef.cached_result = (value, fixturedef.cache_key(request), None)
    return value if value is not None else True  # anything but None ends the search for a hook


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Say which tests there are, and keep those that the plan wants."""
    if CLIENT == "kafka-python":
        without_broker()
    kept = [item for item in items if not FIXTURES or NODE_FIXTURE in getattr(item, "fixturenames", ())]
    write(collected=[item.nodeid for item in kept])
    kept = [item for item in kept if item.nodeid in PLAN]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    write(begin=item.nodeid)
    result = yield
    write(end=item.nodeid)
    return result


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    write(
        report=report.nodeid,
        when=report.when,
        outcome=report.outcome,
        seconds=report.duration,
        expected=getattr(report, "wasxfail", None),
        detail=detail(report),
    )


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        write(uncollected=report.nodeid, detail=detail(report))


def detail(report: Any) -> str:
    """Return why in one line: the reason of a skip, the error of a failure."""
    text = report.longrepr
    if isinstance(text, tuple):
        return str(text[2])[:DETAIL_LENGTH_MAX]
    crash = getattr(text, "reprcrash", None)
    words = f"{crash.message} ({os.path.basename(crash.path)}:{crash.lineno})" if crash else str(text or "")
    return " ".join(words.split())[:DETAIL_LENGTH_MAX]
