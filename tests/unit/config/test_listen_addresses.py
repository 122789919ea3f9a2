"""Listeners of one node have ports of their own: what would fail later, or take the other's clients, is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from semel.broker.config.node_config import NodeConfig
from semel.broker.config.sources import check_ports_differ
from semel.broker.node import Node
from semel.runtime.setting import ConfigError

ALL = ("kafka.listen", "grpc.listen", "metrics.listen")


@pytest.mark.parametrize(
    ("kafka", "grpc"),
    [
        ("127.0.0.1:9500", "127.0.0.1:9500"),
        ("localhost:9500", "127.0.0.1:9500"),
        ("[::1]:9500", "localhost:9500"),
        ("0.0.0.0:9500", "127.0.0.1:9500"),
        ("10.0.0.1:9500", "[::]:9500"),
    ],
)
def test_one_port_for_two_listeners_is_refused_with_both_options(kafka: str, grpc: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_ports_differ(NodeConfig(kafka_listen=kafka, grpc_listen=grpc), ALL)
    assert refused.value.message == (
        f"kafka.listen = {kafka} and grpc.listen = {grpc} have the same port, and each needs one of its own: change "
        "--kafka or --grpc"
    )


@pytest.mark.parametrize(
    ("kafka", "grpc"),
    [
        ("127.0.0.1:9500", "127.0.0.1:9501"),
        ("127.0.0.1:0", "127.0.0.1:0"),
        ("127.0.0.1:9500", "127.0.0.2:9500"),
        ("0.0.0.0:9500", "[::1]:9500"),
        ("log1.example.com:9500", "127.0.0.1:9500"),
    ],
)
def test_other_addresses_may_have_the_same_port(kafka: str, grpc: str) -> None:
    check_ports_differ(NodeConfig(kafka_listen=kafka, grpc_listen=grpc), ALL)


def test_only_listeners_that_are_opened_count() -> None:
    check_ports_differ(NodeConfig(kafka_listen="127.0.0.1:9094"), ("kafka.listen", "metrics.listen"))
    with pytest.raises(ConfigError, match="change --kafka or --metrics"):
        check_ports_differ(NodeConfig(kafka_listen="127.0.0.1:9500", metrics_listen="127.0.0.1:9500"), ALL)


def test_a_node_with_one_port_for_two_listeners_makes_no_data_directory(tmp_path: Path) -> None:
    """It opened its logs first, and then said that the port is in use: by itself."""
    place = tmp_path / "data"
    config = NodeConfig(data_dir=str(place), kafka_listen="127.0.0.1:9500", grpc_listen="127.0.0.1:9500")
    with pytest.raises(ConfigError, match="change --kafka or --grpc"):
        asyncio.run(Node.start(config))
    assert not place.exists()
