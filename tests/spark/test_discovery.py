"""A query takes either port of a node, under either option."""

from __future__ import annotations

import threading
import time
import uuid
from pathlib import Path

import pytest
from everything_diskless import diskless_options

from semel.cli.demo.processes import NodeProcess
from semel.protocol.errors import RetriableError
from semel.protocol.v1 import metadata_pb2
from semel.runtime.ports import free_ports
from semel.sdk.transport.rpcs import GET_METADATA
from semel.spark.clients import Address, client_for, run
from semel.spark.sink.options import SinkOptions
from semel.spark.source.options import SourceOptions


def ask(address: Address) -> int:
    """Return how many nodes a process of Spark finds by an address."""
    client = client_for(address)
    try:
        request = metadata_pb2.GetMetadataRequest()
        return len(run(client, client.control.call(GET_METADATA, request)).nodes)
    finally:
        client.close()


def source(options: dict[str, str]) -> Address:
    options |= {"subscribe": "t", "kafka.client.id": uuid.uuid4().hex}
    return SourceOptions.parse(options, is_stream=False).address


@pytest.mark.parametrize("name", ["bootstrap", "kafka.bootstrap.servers"])
@pytest.mark.parametrize("port", ["grpc", "kafka"])
def test_either_option_takes_either_port(node: NodeProcess, name: str, port: str) -> None:
    at = {name: node.bootstrap if port == "grpc" else node.kafka_address}
    assert ask(source(dict(at))) == 1
    assert ask(SinkOptions.parse({**at, "topic": "t", "kafka.client.id": uuid.uuid4().hex}).address) == 1


def test_a_node_that_is_only_starting_is_waited_for(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "data", settings=("disk.min.free.bytes=0", *diskless_options()))
    starter = threading.Thread(target=lambda: (time.sleep(0.5), node.start()))
    starter.start()
    try:
        assert ask(source({"kafka.bootstrap.servers": node.kafka_address})) == 1
    finally:
        starter.join()
        node.stop()


def test_where_nobody_answers_the_error_names_the_address() -> None:
    (port,) = free_ports(1)
    options = {"kafka.bootstrap.servers": f"127.0.0.1:{port}", "kafka.default.api.timeout.ms": "500"}
    with pytest.raises(RetriableError, match=f"nothing listens on 127.0.0.1:{port}"):
        ask(source(options))
