"""The two Kafka messages that a client writes and reads by hand are kio's, byte for byte."""

from __future__ import annotations

from typing import Any

import pytest
from kio.serial import entity_writer

from semel.protocol.kafka.api import ApiKey, WireFormatError, join_parts
from semel.protocol.kafka.broker_configs import (
    DESCRIBE_CLUSTER_VERSION,
    DESCRIBE_CONFIGS_VERSION,
    describe_cluster_request,
    describe_configs_request,
    read_broker_ids,
    read_configs,
)
from semel.protocol.kafka.entities import load_entity
from semel.protocol.kafka.messages import Sink, build_entity, build_response

CONFIGS: tuple[dict[str, Any], ...] = (
    {"name": "grpc.listen", "value": "0.0.0.0:9094", "read_only": True, "config_source": 4, "documentation": "where"},
    {"name": "secret", "value": None, "is_sensitive": True, "config_type": 2},
    {"name": "grpc.advertised", "value": "", "synonyms": [{"name": "a", "value": None, "source": 5}]},
)


def written_by_kio(key: ApiKey, version: int, **values: Any) -> bytes:
    entity, sink = load_entity(key, version, "request"), Sink()
    write: Any = entity_writer(entity)
    write(sink, build_entity(entity, values, frozenset))
    return b"".join(sink.parts)


def test_requests_are_what_kio_writes() -> None:
    assert join_parts(describe_cluster_request()) == written_by_kio(ApiKey.DESCRIBE_CLUSTER, DESCRIBE_CLUSTER_VERSION)
    resources = [{"resource_type": 4, "resource_name": "17", "configuration_keys": ["grpc.listen", "é"]}]
    assert join_parts(describe_configs_request(17, ["grpc.listen", "é"])) == written_by_kio(
        ApiKey.DESCRIBE_CONFIGS, DESCRIBE_CONFIGS_VERSION, resources=resources
    )


@pytest.mark.parametrize("count", [0, 1, 3])
def test_brokers_are_read_as_kio_writes_them(count: int) -> None:
    brokers = [{"broker_id": 7 + n, "host": "a" * n, "port": 9092, "rack": None if n else "r"} for n in range(count)]
    body = build_response(
        ApiKey.DESCRIBE_CLUSTER, DESCRIBE_CLUSTER_VERSION, cluster_id="c", controller_id=7, brokers=brokers
    )
    assert read_broker_ids(body) == [7 + n for n in range(count)]


def test_settings_are_read_as_kio_writes_them() -> None:
    results = [
        {"resource_type": 4, "resource_name": "7", "configs": list(CONFIGS)},
        {"resource_type": 4, "resource_name": "8", "error_code": 29, "error_message": "no", "configs": []},
    ]
    body = build_response(ApiKey.DESCRIBE_CONFIGS, DESCRIBE_CONFIGS_VERSION, results=results)
    assert read_configs(body) == {"grpc.listen": "0.0.0.0:9094", "grpc.advertised": ""}


@pytest.mark.parametrize("read", [read_broker_ids, read_configs])
def test_a_message_that_ends_early_or_late_is_refused(read: Any) -> None:
    key, version = (
        (ApiKey.DESCRIBE_CLUSTER, DESCRIBE_CLUSTER_VERSION)
        if read is read_broker_ids
        else (ApiKey.DESCRIBE_CONFIGS, DESCRIBE_CONFIGS_VERSION)
    )
    values: dict[str, Any] = (
        {"cluster_id": "c", "brokers": [{"broker_id": 1, "host": "h", "port": 1}]}
        if read is read_broker_ids
        else {"results": [{"resource_type": 4, "resource_name": "7", "configs": list(CONFIGS)}]}
    )
    body = build_response(key, version, **values)
    read(body)
    for end in range(len(body)):
        with pytest.raises(WireFormatError):
            read(body[:end])
    with pytest.raises(WireFormatError):
        read(body + b"\0")
