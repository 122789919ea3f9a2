"""Beyond the loopback a node starts only if it asks for certificates, or an operator says that it is meant (S6)."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from certificates import Authority, encrypted
from running_node import running_node

import semel
from semel.broker.config.exposure import exposed_listeners
from semel.broker.config.node_config import NodeConfig
from semel.broker.diagnostics.snapshot import take_snapshot
from semel.protocol.api.diagnostics import Severity
from semel.runtime.setting import ConfigError
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


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"kafka_listen": "0.0.0.0:0"}, "kafka.listen=0.0.0.0:0"),
        ({"grpc_listen": "0.0.0.0:0"}, "grpc.listen=0.0.0.0:0"),
        ({"kafka_listen": "0.0.0.0:0", "grpc_listen": "[::]:0"}, "kafka.listen=0.0.0.0:0 and grpc.listen=[::]:0"),
    ],
)
def test_S6_a_node_does_not_start_where_others_reach_it_unless_an_operator_says_so(
    tmp_path: Path, settings: dict[str, str], named: str
) -> None:
    async def start() -> None:
        async with running_node(tmp_path, **settings):
            pass

    with pytest.raises(ConfigError) as raised:
        asyncio.run(start())
    told = raised.value.message
    assert told.startswith(f"other machines can reach {named}, and everybody who can connect may read")
    for way_out in ("listen on 127.0.0.1", "ssl.client.auth=required", "listeners.allow.anonymous=true (--insecure"):
        assert way_out in told
    assert not (tmp_path / "data").exists()


def test_S6_a_log_in_the_program_does_not_listen_where_others_reach_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="other machines can reach"):
        semel.open(tmp_path / "log", kafka="0.0.0.0:0")


def test_S6_certificates_open_all_addresses(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    settings = encrypted(authority.node(), authority) | {"kafka_listen": "tls://0.0.0.0:0"}

    async def start() -> list[Finding]:
        async with running_node(tmp_path, **settings) as node:
            return diagnose(Cluster((await take_snapshot(node),))).findings

    assert "anonymous-access" not in [one.kind.name for one in asyncio.run(start())]
    with pytest.raises(ConfigError, match="other machines can reach"):
        asyncio.run(running_node(tmp_path, **settings | {"ssl_client_auth": "none"}).__aenter__())


def test_S6_a_node_that_serves_anybody_says_so_and_so_does_the_doctor(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def start() -> list[Finding]:
        async with running_node(tmp_path, kafka_listen="0.0.0.0:0", listeners_allow_anonymous=True) as node:
            return diagnose(Cluster((await take_snapshot(node),))).findings

    with caplog.at_level(logging.INFO, "semel"):
        [finding] = [one for one in asyncio.run(start()) if one.kind.name == "anonymous-access"]
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
