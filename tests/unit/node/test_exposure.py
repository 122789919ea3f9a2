"""Listening beyond the loopback without users: warned of at the start, unless an operator says it is meant (S6)."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from running_node import running_node

from semel.broker.config.node_config import NodeConfig
from semel.broker.diagnostics.snapshot import take_snapshot
from semel.broker.listeners.exposure import exposed_listeners
from semel.protocol.api.diagnostics import Severity
from semel.sdk.diagnosis.findings import Cluster, Finding
from semel.sdk.diagnosis.rules import diagnose


@pytest.mark.parametrize(
    ("kafka", "grpc", "exposed"),
    [
        ("127.0.0.1:1", "[::1]:2", []),
        ("localhost:1", "127.3.2.1:2", []),
        ("0.0.0.0:1", "127.0.0.1:2", ["kafka.listen=0.0.0.0:1"]),
        ("[::]:1", "log1.example.com:2", ["kafka.listen=[::]:1", "grpc.listen=log1.example.com:2"]),
        ("127.0.0.1:1", "10.0.0.7:2", ["grpc.listen=10.0.0.7:2"]),
    ],
)
def test_S6_only_loopback_addresses_keep_other_machines_out(kafka: str, grpc: str, exposed: list[str]) -> None:
    assert exposed_listeners(NodeConfig(kafka_listen=kafka, grpc_listen=grpc)) == exposed


async def start_on_all_addresses(folder: Path, *, is_meant: bool) -> list[Finding]:
    settings = {"kafka_listen": "0.0.0.0:0", "listeners_allow_anonymous": is_meant}
    async with running_node(folder, **settings) as node:
        found = diagnose(Cluster((await take_snapshot(node),))).findings
    return [one for one in found if one.kind.name == "anonymous-access"]


def test_S6_a_start_beyond_the_loopback_warns_in_one_line_and_the_doctor_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "semel"):
        [finding] = asyncio.run(start_on_all_addresses(tmp_path, is_meant=False))
    [line] = [one for one in caplog.records if "everybody who can connect to" in one.getMessage()]
    assert line.levelno == logging.WARNING
    assert "kafka.listen=0.0.0.0:0 may read, write and delete everything" in line.getMessage()
    assert "--set listeners.allow.anonymous=true" in line.getMessage()
    assert finding.severity is Severity.WARNING
    assert finding.commands == (f"semel serve --data-dir {tmp_path}/data --set listeners.allow.anonymous=true",)


def test_S6_an_operator_who_says_that_it_is_meant_is_told_and_not_warned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "semel"):
        [finding] = asyncio.run(start_on_all_addresses(tmp_path, is_meant=True))
    [line] = [one for one in caplog.records if "everybody who can connect to" in one.getMessage()]
    assert line.levelno == logging.INFO
    assert finding.severity is Severity.INFO


def test_S6_a_node_on_the_loopback_says_nothing_of_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> list[str]:
        async with running_node(tmp_path) as node:
            return [one.kind.name for one in diagnose(Cluster((await take_snapshot(node),))).findings]

    with caplog.at_level(logging.INFO, "semel"):
        assert "anonymous-access" not in asyncio.run(main())
    assert "everybody who can connect to" not in caplog.text
