"""Random requests of the Kafka protocol: plausible ones of every API and version, and bytes broken in every place."""

from __future__ import annotations

import dataclasses
import datetime
import random
import struct
import types
import typing
from typing import Any
from uuid import UUID

from kio.serial import entity_writer

from semel.broker.listeners.kafka.registry import Api
from semel.protocol.kafka import messages
from semel.protocol.kafka.api import ApiKey, build_request_header
from semel.protocol.kafka.entities import load_entity

NAMES = ["t", "u", "no-such-topic", "", "a" * 249, "a" * 300, "ünïcode", "../t", "__consumer_offsets", "group", "range"]
NUMBERS = [0, 1, 2, 5, -1, -2, -3, 99, 1_000, 2**15 - 1, -(2**15)]
LONG_NUMBERS = [*NUMBERS, 2**31 - 1, -(2**31)]
LONGER_NUMBERS = [*LONG_NUMBERS, 2**63 - 1, -(2**63), 1_700_000_000_000]

_RANGES = {"int8": (-(2**7), 2**7 - 1), "int16": (-(2**15), 2**15 - 1), "int32": (-(2**31), 2**31 - 1)}
_UNSIGNED = {"uint8": 2**8 - 1, "uint16": 2**16 - 1, "uint32": 2**32 - 1}


class RequestMaker:
    """Makes requests from one seed. `topic_ids` are of topics that exist."""

    def __init__(self, seed: int, topic_ids: list[bytes]) -> None:
        self._random = random.Random(seed)
        self._topic_ids = [UUID(bytes=each) for each in topic_ids] + [UUID(int=7)]

    def frame(self, api: Api) -> bytes:
        """One request of `api` with its size before it, half of them with something broken."""
        chance = self._random.random()
        version = self._random.randint(api.min_version, api.max_version)
        if chance < 0.04:
            version = self._random.choice([-1, api.max_version + 1, 2**15 - 1])
            return _framed(build_request_header(api.key, version, 1, "fuzz") + self._random.randbytes(20))
        request = build_request_header(api.key, version, 1, self._random.choice([None, "fuzz"])) + self.body(
            api.key, version
        )
        if chance < 0.5:
            return _framed(request)
        return self._broken(request)

    def body(self, key: ApiKey, version: int) -> bytes:
        entity = load_entity(key, version, "request")
        sink = messages.Sink()
        entity_writer(entity)(sink, self._entity(entity, 0))  # type: ignore[arg-type]
        return b"".join(sink.parts)

    def _broken(self, request: bytes) -> bytes:
        data = bytearray(request)
        for _ in range(self._random.randint(1, 4)):
            place = self._random.randrange(len(data))
            match self._random.randrange(5):
                case 0:
                    data[place] = self._random.randrange(256)
                case 1:
                    del data[place:]
                    data += b"\x00"
                case 2:
                    data[place : place + 4] = self._random.choice(
                        [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff\xff\xff\x7f"]
                    )
                case 3:
                    data[place:place] = self._random.randbytes(self._random.randint(1, 30))
                case _:
                    del data[place : place + self._random.randint(1, 8)]
            if not data:
                data += b"\x00"
        if self._random.random() < 0.05:
            wrong = self._random.choice([-1, 0, 1, 3, 2**31 - 1, len(data) + 1_000])
            return struct.pack(">i", wrong) + bytes(data)
        return _framed(bytes(data))

    def _entity(self, entity: type[Any], depth: int) -> Any:
        hints = typing.get_type_hints(entity)
        return entity(
            **{field.name: self._value(field, hints[field.name], depth) for field in dataclasses.fields(entity)}
        )

    def _value(self, field: Any, hint: Any, depth: int) -> Any:
        if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
            options = [each for each in typing.get_args(hint) if each is not type(None)]
            # A tagged field can't say null on the wire; absent, it has its default.
            if "tag" in field.metadata:
                return field.default
            return None if self._random.random() < 0.3 else self._value(field, options[0], depth)
        if "tag" in field.metadata and field.default is not dataclasses.MISSING and self._random.random() < 0.7:
            return field.default
        if typing.get_origin(hint) is tuple:
            item = typing.get_args(hint)[0]
            return tuple(self._value(field, item, depth + 1) for _ in range(self._random.choice([0, 1, 1, 2, 3])))
        if dataclasses.is_dataclass(hint):
            assert isinstance(hint, type)
            return self._entity(hint, depth + 1)
        return self._primitive(field.metadata.get("kafka_type", ""))

    def _primitive(self, kind: str) -> Any:
        choose = self._random.choice
        if kind in _RANGES:
            low, high = _RANGES[kind]
            return min(high, max(low, choose(LONG_NUMBERS)))
        if kind in _UNSIGNED:
            return min(_UNSIGNED[kind], max(0, choose(LONG_NUMBERS)))
        match kind:
            case "int64":
                return choose(LONGER_NUMBERS)
            case "float64":
                return choose([0.0, -1.0, 1e308])
            case "bool":
                return choose([True, False])
            case "string":
                return choose(NAMES)
            case "bytes" | "records":
                return self._random.randbytes(choose([0, 1, 10, 80]))
            case "uuid":
                return choose(self._topic_ids)
            case "timedelta_i32" | "timedelta_i64":
                return datetime.timedelta(milliseconds=choose([0, 1, 10, 100, 10_000, -1, 2**31 - 1]))
            case "datetime_i64":
                return datetime.datetime.fromtimestamp(1_700_000_000, datetime.UTC)
            case "error_code":
                from kio.schema.errors import ErrorCode

                return choose(list(ErrorCode))
        raise AssertionError(f"no random value for {kind}")


def _framed(request: bytes) -> bytes:
    return struct.pack(">i", len(request)) + request
