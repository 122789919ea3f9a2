"""The listeners of a broker for tests: at addresses that it has again after another start."""

from __future__ import annotations

from typing import Final

from semel.broker.config.listeners import PROTOCOLS, listeners_of, parse_items
from semel.broker.node import Node
from semel.protocol.schemes import with_scheme_of, without_scheme
from semel.runtime.ports import lasting_address
from semel.runtime.setting import ConfigError

LISTEN: Final = {protocol: f"{protocol}.listen" for protocol in PROTOCOLS}


def give_lasting_addresses(values: dict[str, object]) -> None:
    """Choose ports for the listeners for clients in a node's settings. Raises `ConfigError` for a wrong item."""
    for protocol, listen in LISTEN.items():
        several = values.get(f"{protocol}.listeners")
        if not several:
            values[listen] = lasting_address(values[listen])
            continue
        if isinstance(several, str):
            several = several.split(",")
        if not isinstance(several, list | tuple) or not all(isinstance(each, str) for each in several):
            raise ConfigError(f"{protocol}.listeners takes a tuple such as ('internal=127.0.0.1:0',), not {several!r}")
        values.pop(listen, None)
        items = parse_items(f"{protocol}.listeners", several)
        values[f"{protocol}.listeners"] = tuple(
            each.item(lasting_address(without_scheme(each.listen))) for each in items
        )


def addresses_again(node: Node) -> dict[str, object]:
    """Return the settings by which a node takes the addresses that it has now."""
    found: dict[str, object] = {}
    for protocol, addresses in (("kafka", node.kafka_addresses), ("grpc", node.grpc_addresses)):
        listeners = listeners_of(node.config, protocol)
        if listeners[0].is_named:
            items = (each.item(address) for each, address in zip(listeners, addresses, strict=True))
            found[f"{protocol}.listeners"] = tuple(items)
        else:
            found[LISTEN[protocol]] = with_scheme_of(listeners[0].listen, addresses[0])
    return found


def main_address(values: dict[str, object], protocol: str) -> str:
    """Return the address of a node's main listener of a protocol, with its scheme."""
    several = values.get(f"{protocol}.listeners")
    if isinstance(several, tuple) and several:
        return parse_items(f"{protocol}.listeners", several)[0].listen
    return str(values[LISTEN[protocol]])
