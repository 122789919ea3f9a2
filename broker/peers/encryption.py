"""How a node encrypts what it says to another one whose address has `tls://`, and checks that it is the one meant."""

from __future__ import annotations

import ssl

from semel.protocol.tls import TLS_PREFIX
from semel.runtime.kafka_client.connection import ConnectionLostError
from semel.runtime.setting import ConfigError


class PeerEncryption:
    """The authorities of the other nodes' certificates. Their file is read for each connection: it may be renewed."""

    def __init__(self, ca_location: str) -> None:
        """`ca_location`: a PEM file; empty: this node can connect to none that encrypts."""
        self._ca_location = ca_location

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

    def _unusable(self, error: OSError) -> str:
        reason = getattr(error, "reason", None) or error.strerror or str(error)
        return f"ssl.ca.location = {self._ca_location} can't be used: {reason.replace('_', ' ').lower()}"
