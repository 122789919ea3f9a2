"""Where a client's calls go: the addresses that it was given, those that it has learned, and who coordinates what."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

from semel.protocol.v1 import metadata_pb2
from semel.sdk.transport.rpcs import Key

COORDINATORS_MAX: Final = 1_000
"""Keys whose coordinators are remembered. A client has few: its transactional id, its group."""


class KnownNodes:
    """The nodes that may be asked, and which one is. On the IO thread."""

    def __init__(self, given: Sequence[str]) -> None:
        self._given = tuple(given)
        self._asked: tuple[str, ...] = self._given
        self._current = self._given[0]
        self._coordinators: OrderedDict[Key, str] = OrderedDict()
        self.by_id: Mapping[int, str] = {}
        """The gRPC addresses of all nodes by their ids, by the last metadata; empty where there is only one node, which
        may be known under an address that can't be reached from here: a container's, a tunnel's."""

    @property
    def current(self) -> str:
        """The address to ask where any node will do: the one that answered last."""
        return self._current

    def begin_with(self, address: str) -> None:
        """Ask this one from now on."""
        self._current = address

    def move_on(self, failed: str) -> None:
        """Ask another one than `failed` from now on. Of several calls that fail at one node, the first one moves."""
        if failed != self._current:
            return
        asked = self._asked
        place = asked.index(failed) if failed in asked else -1
        self._current = asked[(place + 1) % len(asked)]

    def give_up_on(self, address: str) -> None:
        """Ask other nodes from now on, also about what this one coordinates."""
        self.move_on(address)
        for key in [key for key, coordinator in self._coordinators.items() if coordinator == address]:
            del self._coordinators[key]

    def learn(self, response: metadata_pb2.GetMetadataResponse) -> None:
        """Take the nodes from an answer about metadata."""
        by_id = addresses_of(response)
        if len(set(by_id.values())) < 2:
            return
        self.by_id = by_id
        self._asked = tuple(dict.fromkeys((*self._given, *self.by_id.values())))

    def coordinator(self, key: Key) -> str | None:
        """Return the address that a node has named for a key; None where any node is to be asked."""
        address = self._coordinators.get(key)
        if address is not None:
            self._coordinators.move_to_end(key)
        return address

    def remember(self, key: Key | None, address: str) -> None:
        """Ask this address about a key from now on."""
        if key is None:
            return
        self._coordinators[key] = address
        self._coordinators.move_to_end(key)
        if len(self._coordinators) > COORDINATORS_MAX:
            self._coordinators.popitem(last=False)

    def forget(self, key: Key | None) -> None:
        """Ask any node about a key again."""
        if key is not None:
            self._coordinators.pop(key, None)


def addresses_of(response: metadata_pb2.GetMetadataResponse) -> dict[int, str]:
    """Return the gRPC addresses of all nodes by their ids."""
    return {
        node.node_id: f"[{node.grpc_host}]:{node.grpc_port}"
        if ":" in node.grpc_host
        else f"{node.grpc_host}:{node.grpc_port}"
        for node in response.nodes
    }
