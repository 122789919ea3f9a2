"""What a client asks a Kafka listener for a broker's settings with: DescribeCluster v0 and DescribeConfigs v4.

Written by hand, as Produce and Fetch are: a client needs no other Kafka messages, and so none of kio.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from semel.protocol.errors import ErrorCode, error_for
from semel.protocol.kafka.wire import Buffer, Part, WireReader, WireWriter

DESCRIBE_CLUSTER_VERSION: Final = 0
DESCRIBE_CONFIGS_VERSION: Final = 4

_BROKER: Final = 4
_BROKER_BYTES_MIN: Final = 4 + 1 + 4 + 1 + 1
_RESULT_BYTES_MIN: Final = 2 + 1 + 1 + 1 + 1 + 1
_CONFIG_BYTES_MIN: Final = 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1
_SYNONYM_BYTES_MIN: Final = 1 + 1 + 1 + 1


def describe_cluster_request() -> list[Part]:
    """Return the body of a request for the brokers of the cluster."""
    writer = WireWriter()
    writer.write_int8(0)  # no authorized operations
    writer.write_no_tags()
    return writer.finish()


def read_broker_ids(body: Buffer) -> list[int]:
    """Return the brokers' ids of a DescribeCluster answer.

    Raises `WireFormatError`, and `FatalError` CLUSTER_AUTHORIZATION_FAILED.
    """
    reader = WireReader(body)
    reader.read_int32()  # throttle time
    _check_may(reader.read_int16())  # with another error there are no brokers
    reader.read_nullable_string(True)
    reader.read_string(True)  # cluster id
    reader.read_int32()  # controller
    ids = []
    for _ in range(reader.read_count(True, _BROKER_BYTES_MIN)):
        ids.append(reader.read_int32())
        reader.read_string(True)
        reader.read_int32()
        reader.read_nullable_string(True)  # rack
        reader.skip_tagged_fields()
    reader.read_int32()  # authorized operations
    reader.skip_tagged_fields()
    reader.expect_end()
    return ids


def describe_configs_request(broker_id: int, names: Sequence[str]) -> list[Part]:
    """Return the body of a request for these settings of one broker."""
    writer = WireWriter()
    writer.write_count(1, True)
    writer.write_int8(_BROKER)
    writer.write_string(str(broker_id), True)
    writer.write_count(len(names), True)
    for name in names:
        writer.write_string(name, True)
    writer.write_no_tags()
    writer.write_int8(0)  # no synonyms
    writer.write_int8(0)  # no documentation
    writer.write_no_tags()
    return writer.finish()


def read_configs(body: Buffer) -> dict[str, str]:
    """Return the settings of a DescribeConfigs answer that have a value.

    Raises `WireFormatError`, and `FatalError` CLUSTER_AUTHORIZATION_FAILED.
    """
    reader = WireReader(body)
    reader.read_int32()  # throttle time
    found: dict[str, str] = {}
    for _ in range(reader.read_count(True, _RESULT_BYTES_MIN)):
        _check_may(reader.read_int16())  # with another error there are no settings
        reader.read_nullable_string(True)
        reader.read_int8()  # kind of resource
        reader.read_string(True)
        for _ in range(reader.read_count(True, _CONFIG_BYTES_MIN)):
            name, value = _read_config(reader)
            if value is not None:
                found[name] = value
        reader.skip_tagged_fields()
    reader.skip_tagged_fields()
    reader.expect_end()
    return found


def _check_may(code: int) -> None:
    if code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        raise error_for(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "this user may not be told of the cluster")


def _read_config(reader: WireReader) -> tuple[str, str | None]:
    name = reader.read_string(True)
    value = reader.read_nullable_string(True)
    reader.read_bool()  # read-only
    reader.read_int8()  # where it is from
    reader.read_bool()  # sensitive
    for _ in range(reader.read_count(True, _SYNONYM_BYTES_MIN)):
        reader.read_string(True)
        reader.read_nullable_string(True)
        reader.read_int8()
        reader.skip_tagged_fields()
    reader.read_int8()  # type
    reader.read_nullable_string(True)  # documentation
    reader.skip_tagged_fields()
    return name, value
