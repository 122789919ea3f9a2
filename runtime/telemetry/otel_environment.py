"""Which exporters OpenTelemetry's standard variables ask for: the part that nodes and clients share.

What the SDK's own classes read (OTEL_SERVICE_NAME, OTEL_EXPORTER_OTLP_* and more), they read themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, Final

from semel.protocol.extras import install_command

_PROTOCOLS: Final = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
_GRPC_PACKAGE: Final = "opentelemetry-exporter-otlp-proto-grpc"


def exporters_asked_for(signal: str, environment: Mapping[str, str]) -> list[str]:
    """Return the names of the exporters of a signal, TRACES or METRICS, as they are registered; empty: not asked for.

    OTEL_<signal>_EXPORTER names them; without it, an OTLP endpoint asks for OTLP. OTEL_SDK_DISABLED turns all off.
    OTLP is http/protobuf, OpenTelemetry's default, unless OTEL_EXPORTER_OTLP_PROTOCOL says grpc. Raises `ValueError`.
    """
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    given = [name.strip() for name in environment.get(f"OTEL_{signal}_EXPORTER", "").split(",") if name.strip()]
    if not given and any(
        environment.get(name) for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    ):
        given = ["otlp"]
    return [_registered(name, signal, environment) for name in given if name != "none"]


def exporter_class(signal: str, name: str) -> Any:
    """Return what makes the exporter of that name. Raises `ValueError` that says which package is missing."""
    found = next(iter(entry_points(group=f"opentelemetry_{signal.lower()}_exporter", name=name)), None)
    if found is None:
        raise ValueError(f"there is no exporter {name!r} in this process's Python: {_how_to_install(name)}")
    return found.load()


def _how_to_install(exporter: str) -> str:
    if exporter == "otlp_proto_http":
        return install_command("otel")
    return f"pip install {_GRPC_PACKAGE if exporter == 'otlp_proto_grpc' else 'the package that has it'}"


def _registered(name: str, signal: str, environment: Mapping[str, str]) -> str:
    if name != "otlp":
        return name
    variables = (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    protocol = next((value for value in (environment.get(each, "").strip() for each in variables) if value), None)
    if protocol is not None and protocol not in _PROTOCOLS:
        raise ValueError(f"OTLP by {protocol!r} is not known: OTEL_EXPORTER_OTLP_PROTOCOL is one of {list(_PROTOCOLS)}")
    return _PROTOCOLS[protocol or "http/protobuf"]
