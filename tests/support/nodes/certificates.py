"""Certificates for tests: an authority of the test's own, nodes' and clients' of it, and files that hold them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from semel.sdk.transport.security import Tls


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, both PEM files."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates, and has a file, `ca`, by which they are recognised."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._authority = trustme.CA()
        self.ca = folder / "ca.pem"
        self._authority.cert_pem.write_to_path(self.ca)

    def node(self, name: str = "node", *hosts: str) -> Pair:
        """Return a certificate for a node that is reached by `hosts`: as if by nothing else, this machine. Names that
        were used before are written again."""
        return self._write(name, self._authority.issue_cert(*(hosts or ("localhost", "127.0.0.1", "::1"))))

    def client(self, name: str = "client") -> Pair:
        """Return a certificate that a client shows."""
        return self._write(name, self._authority.issue_cert(f"{name}@example.com", common_name=name))

    def tls(self, pair: Pair | None = None) -> Tls:
        """Return how a client reaches nodes of this authority, showing a certificate."""
        return Tls(str(self.ca), *(() if pair is None else (str(pair.certificate), str(pair.key))))

    def _write(self, name: str, issued: trustme.LeafCert) -> Pair:
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        key = load_pem_private_key(issued.private_key_pem.bytes(), None)
        pair.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))  # as Java wants it
        chain = b"".join(each.bytes() for each in issued.cert_chain_pems)
        pair.certificate.write_bytes(chain)
        return pair


def encrypted(pair: Pair, authority: Authority | None = None) -> dict[str, str]:
    """Return the settings of a node whose two listeners encrypt, and ask for certificates of `authority`."""
    settings = {
        "kafka_listen": "tls://127.0.0.1:0",
        "grpc_listen": "tls://127.0.0.1:0",
        "ssl_certificate_location": str(pair.certificate),
        "ssl_key_location": str(pair.key),
    }
    if authority is not None:
        settings |= {"ssl_client_auth": "required", "ssl_ca_location": str(authority.ca)}
    return settings
