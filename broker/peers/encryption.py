"""How a node encrypts what it says to another one whose address has `tls://`, and checks that it is the one meant."""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Final

from semel.protocol.schemes import TLS_PREFIX
from semel.runtime.kafka_client.connection import ConnectionLostError
from semel.runtime.setting import ConfigError
from semel.runtime.tls_in_memory import shown_to

_log = logging.getLogger("semel.peers")

_TOLD_EVERY_S: Final = 60.0


class PeerEncryption:
    """The authorities of the other nodes' certificates. Their file is read for each connection: it may be renewed."""

    def __init__(self, ca_location: str) -> None:
        """`ca_location`: a PEM file; empty: this node can connect to none that encrypts."""
        self._ca_location = ca_location
        self._told_at: dict[int, float] = {}

    def check(self) -> None:
        """Raise `ConfigError` where the file can't be used."""
        try:
            ssl.create_default_context(cafile=self._ca_location)
        except OSError as error:
            raise ConfigError(self._unusable(error)) from None

    def context(self) -> ssl.SSLContext:
        """Return what encrypts a new connection. Raises `ConnectionLostError`."""
        if not self._ca_location:
            raise ConnectionLostError(
                f"the node encrypts (its peer.listen has {TLS_PREFIX}), and this one can't check its certificate: set "
                "ssl.ca.location here"
            )
        try:
            context = ssl.create_default_context(cafile=self._ca_location)
        except OSError as error:
            raise ConnectionLostError(self._unusable(error)) from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        return context

    def warn_of_own(self, shown: ssl.SSLContext, host: str) -> None:
        """Warn where the other nodes would not take this one's certificate, if they know the same authorities.

        Nothing else says so here: they hang up after this side of the handshake is done.
        """
        try:
            shown_to(self.context(), shown, host)
        except ssl.SSLError as error:
            _log.warning("the other nodes can't connect to this one as %s: %s", host, error)

    def tell(self, node_id: int, why: str) -> None:
        """Warn, now and then, that a node is not reached for its certificate: no retry helps, and replicas miss it."""
        now = asyncio.get_running_loop().time()
        if now - self._told_at.get(node_id, -_TOLD_EVERY_S) >= _TOLD_EVERY_S:
            self._told_at[node_id] = now
            _log.warning("node %d is not asked anything: %s", node_id, why)

    def _unusable(self, error: OSError) -> str:
        reason = getattr(error, "reason", None) or error.strerror or str(error)
        return f"ssl.ca.location = {self._ca_location} can't be used: {reason.replace('_', ' ').lower()}"
