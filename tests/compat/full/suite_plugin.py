"""A pytest plugin, given by -p to the suite of a foreign client: points it at a node and writes down what came of it.

It runs in an interpreter that need not know Semel, so it imports nothing of ours. `SEMEL_CLIENT` says how it gets
its cluster, `SEMEL_BOOTSTRAP` where the node is, `SEMEL_PLAN` which tests to run, `SEMEL_EVENTS` where to write.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

HOST, _, PORT = os.environ["SEMEL_BOOTSTRAP"].rpartition(":")
PLAN = frozenset(json.loads(os.environ["SEMEL_PLAN"]))
DETAIL_LENGTH_MAX = 300


class NoCluster:
    """Stands for what would start a cluster: nothing here may want one."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pytest.skip("wants to start a cluster of its own")


def without_trivup() -> None:
    """confluent-kafka-python imports its cluster tool though BROKERS names a cluster."""
    for name in ("trivup", "trivup.clusters", "trivup.clusters.KafkaCluster"):
        sys.modules.setdefault(name, ModuleType(name))
    sys.modules["trivup.clusters.KafkaCluster"].KafkaCluster = NoCluster  # type: ignore[attr-defined]


AIOKAFKA_FIXTURES: dict[str, Any] = {
    "docker": None,
    "kafka_image": "node",
    "ssl_folder": None,
    "kafka_server": SimpleNamespace(
        host=HOST,
        port=int(PORT),
        ssl_port=0,
        sasl_plain_port=0,
        sasl_ssl_port=0,
        container=None,
        hosts=[f"{HOST}:{PORT}"],
    ),
    "acl_manager": None,
    "kafka_config": None,
    "kerberos_utils": None,
}
"""What aiokafka's suite takes from a container."""
NODE_FIXTURE = "kafka_server"
"""Tests of aiokafka without it need no broker."""

FIXTURES = AIOKAFKA_FIXTURES if os.environ["SEMEL_CLIENT"] == "aiokafka" else {}
if os.environ["SEMEL_CLIENT"] == "confluent-kafka-python":
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
