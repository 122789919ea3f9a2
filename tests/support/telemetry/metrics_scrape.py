"""Asks a node's metrics endpoint, and reads what it says."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from semel.broker.config.sources import Address
from semel.broker.telemetry.instruments import Instrument, Kind


@dataclass(frozen=True)
class HttpAnswer:
    status: int
    headers: Mapping[str, str]
    body: bytes


def ask(address: Address, request: bytes) -> HttpAnswer:
    """Send a request as it is, and return the answer; `status` 0 where the connection was closed without one."""
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(request)
        received = b""
        while part := connection.recv(1 << 16):
            received += part
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return HttpAnswer(int(first.split()[1]) if first else 0, headers, body)


def get(address: Address, path: str, **headers: str) -> HttpAnswer:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return ask(address, f"GET {path} HTTP/1.1\r\nHost: node\r\n{lines}\r\n".encode())


@dataclass(frozen=True)
class Scrape:
    """All samples of a scrape."""

    samples: tuple[Sample, ...]

    @classmethod
    def of(cls, address: Address) -> Scrape:
        answer = get(address, "/metrics")
        assert answer.status == 200, answer
        families = text_string_to_metric_families(answer.body.decode())
        return cls(tuple(sample for family in families for sample in family.samples))

    def values(self, name: str, **labels: str) -> list[float]:
        return [each.value for each in self.samples if each.name == name and labels.items() <= each.labels.items()]

    def value(self, name: str, **labels: str) -> float:
        """Return the one value that there must be."""
        (value,) = self.values(name, **labels)
        return value

    def labels_of(self, name: str) -> set[str]:
        """Return the names of labels with which a metric's samples come."""
        return {label for each in self.samples if each.name == name for label in each.labels}

    @property
    def names(self) -> set[str]:
        return {each.name for each in self.samples}


def samples_of(instrument: Instrument) -> tuple[str, ...]:
    """Return the names under which an instrument's values stand in a scrape."""
    name = instrument.prometheus_name
    match instrument.kind:
        case Kind.COUNTER:
            return (f"{name}_total",)
        case Kind.GAUGE:
            return (name,)
        case Kind.HISTOGRAM:
            return (f"{name}_bucket", f"{name}_sum", f"{name}_count")
