"""Who a node is in what it tells about itself."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

    from semel.broker.config.node_config import NodeConfig


def node_resource(config: NodeConfig, environment: Mapping[str, str]) -> Resource:
    """Return what tells a node's telemetry from others': the environment's words, and the node's own beside them."""
    from opentelemetry.sdk.resources import Resource

    attributes: dict[str, str] = {"semel.node.id": str(config.node_id)}
    given = environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
    if not environment.get("OTEL_SERVICE_NAME") and "service.name=" not in given:
        attributes["service.name"] = "semel"
    if "service.instance.id=" not in given:
        attributes["service.instance.id"] = f"node-{config.node_id}"
    with suppress(PackageNotFoundError):
        attributes["service.version"] = version("semel")
    return Resource.create(attributes)
