"""What is loaded before it is needed: heavy packages, and large files of ours, would make each start slower."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

OF_NODES = ("sqlalchemy", "kio", "grpc_health", "grpc_reflection", "prometheus_client", "semel.broker")
"""What a node alone needs."""
OF_HELP = ("http", "email", "urllib.request", "importlib.metadata", "pydantic", "rich")
OF_CALLS = (
    *("grpc", "tenacity", "semel.sdk.transport.control", "opentelemetry"),
    *("semel.protocol.api.groups", "semel.protocol.api.transactions", "semel.protocol.api.shared_transactions"),
    *("semel.protocol.api.diagnostics", "semel.sdk.diagnosis"),
)
"""What clients need once they are made, and what only some of their calls do."""

BEFORE_CONNECTING = """\
import semel.cli.common
def open_admin(bootstrap, client_id="semel"):
    semel.cli.common.semel.Admin
    raise SystemExit
semel.cli.common.open_admin = open_admin
"""
"""What a command has loaded when it is about to make its client."""


def command(*arguments: str, before: str = "") -> str:
    return f"{before}sys.argv = ['semel', *{arguments!r}]\nfrom semel.cli.entry import main\nmain()"


def loaded(code: str, names: Sequence[str]) -> set[str]:
    """Return which of the modules a program has loaded when it ends."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "COVERAGE"))}
    program = (
        "import atexit, json, sys\n"
        "atexit.register(lambda: print('\\n' + json.dumps(sorted(sys.modules)), file=sys.stderr))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-P", "-c", program + code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=ROOT,
        env=environment,
    )
    assert ran.returncode == 0, ran.stderr
    return set(json.loads(ran.stderr.splitlines()[-1])) & set(names)


@pytest.mark.parametrize("name", ["Producer", "Consumer", "Admin"])
def test_the_class_of_a_client_loads_nothing_that_only_its_calls_need(name: str) -> None:
    assert loaded(f"import semel\nsemel.{name}", (*OF_NODES, *OF_HELP, *OF_CALLS)) == set()


def test_the_list_of_commands_loads_no_client_and_nothing_of_a_node() -> None:
    names = (*OF_NODES, *OF_HELP, *OF_CALLS, "asyncio", "google.protobuf", "semel.sdk")
    assert loaded(command("--help"), names) == set()


@pytest.mark.parametrize(
    "arguments", [("topic", "list"), ("group", "list"), ("user", "list"), ("acl", "list")], ids=" ".join
)
def test_a_command_that_asks_a_node_loads_no_more_than_its_client_before_it_connects(
    arguments: tuple[str, ...],
) -> None:
    names = (*OF_NODES, *OF_HELP, *OF_CALLS)
    assert loaded(command(*arguments, before=BEFORE_CONNECTING), names) == set()


def test_a_list_of_topics_is_printed_without_what_other_calls_need() -> None:
    """The client is made and its call under way when the command finds that there is no node."""
    names = {*OF_NODES, *OF_HELP, *OF_CALLS} - {"grpc", "tenacity", "semel.sdk.transport.control"}
    names -= {"grpc_health", "grpc_reflection"}  # gRPC itself looks whether they are there
    code = (
        "import semel\n"
        "admin = semel.Admin('127.0.0.1:1', connect_timeout_ms=1)\n"
        "try: admin.topics()\n"
        "except semel.RetriableError: pass\n"
        "admin.close()"
    )
    assert loaded(code, sorted(names)) == set()


def test_the_help_of_serve_loads_neither_a_database_nor_grpc() -> None:
    assert loaded(command("serve", "--help"), ("grpc", "pydantic", "rich", "semel.broker.node")) == set()
