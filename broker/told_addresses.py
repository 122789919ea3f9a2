"""Which addresses a node tells of itself when it registers: of its listeners for clients, by their names."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Final

from semel.broker.config.listeners import ClientListener
from semel.broker.config.sources import Address, advertised_address, parse_address
from semel.broker.metadata.changes import LISTENERS_VERSION, BrokerRegistered, Endpoint
from semel.broker.metadata.image import MetadataImage
from semel.broker.registration import agreed_version
from semel.broker.start_errors import NodeStartError, StartFailure
from semel.protocol.listener_names import DEFAULT_LISTENER
from semel.protocol.schemes import with_scheme_of

_NOWHERE: Final = "127.0.0.1"


def told_endpoints(
    listeners: Iterable[ClientListener], listening: Iterable[Address], *, are_served: bool
) -> tuple[Endpoint, ...]:
    """Return the address that clients are told of each listener, in order.

    listening: where each listens, with the real port
    are_served: whether they listen; where not, the port is 0: that of a former start is over. One that was given
                (advertised) counts in any case: clients in the process may know nodes by such names
    """
    return tuple(
        Endpoint(each.name, *_told(each, address, is_served=are_served))
        for each, address in zip(listeners, listening, strict=True)
    )


def _told(listener: ClientListener, listening: Address, *, is_served: bool) -> Address:
    if listener.advertised:
        return advertised_address(listener)
    return _reachable(listening) if is_served else Address(_NOWHERE, 0)


def told_peers(listen: str, advertised: str, port: int) -> Address:
    """Return the address that the other nodes are told, with the scheme of `listen`. port: the real one"""
    told = (
        parse_address("peer.advertised", advertised)
        if advertised
        else _reachable(Address(parse_address("peer.listen", listen).host, port))
    )
    return Address(with_scheme_of(listen, told.host), told.port)


def _reachable(listening: Address) -> Address:
    """Return the address that others connect to where a node listens on all of its addresses: by its name."""
    if listening.host in ("0.0.0.0", "::"):  # noqa: S104
        return Address(socket.gethostname(), listening.port)
    return listening


def named_endpoints(endpoints: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
    """Return what a registration has of listeners besides the main one's address: nothing where it is the only one and
    has the default name, as before there were names.
    """
    return () if [each.listener for each in endpoints] == [DEFAULT_LISTENER] else endpoints


def check_may_name_listeners(image: MetadataImage, registered: BrokerRegistered) -> None:
    """Raise `NodeStartError` where a node has listeners with names, and another could not read its registration."""
    if not registered.kafka_listeners and not registered.grpc_listeners:
        return
    if agreed_version(image, registered) >= LISTENERS_VERSION:
        return
    older = [
        str(each.node_id)
        for each in image.brokers.values()
        if each.metadata_version < LISTENERS_VERSION and each.node_id != registered.node_id
    ]
    raise NodeStartError(
        "kafka.listeners and grpc.listeners need a newer version on all nodes, and older ones run on "
        f"{', '.join(older)}: start this node with kafka.listen and grpc.listen, bring all nodes to the newer version, "
        "and give the listeners their names then",
        StartFailure.METADATA,
    )
