"""How a node of these runs is secured: as the brokers are that the suites start themselves, all in one node.

It has a listener for each of Kafka's ways to connect, users, tokens, certificates made for the run, and ACLs that count
where there are some.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support" / "nodes"))

from certificates import Authority
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, pkcs12
from cryptography.hazmat.primitives.serialization import load_pem_private_key as read_key
from cryptography.x509 import load_pem_x509_certificate as read_certificate
from cryptography.x509 import load_pem_x509_certificates as read_certificates
from token_issuer import AUDIENCE, ISSUER, Issuer
from user_files import set_user

from semel.broker.config.permissions import STANDARD_AUTHORIZER
from semel.protocol.scram import ITERATIONS_MIN

LISTENERS: Final[Mapping[str, str]] = {
    "plaintext": "",
    "ssl": "tls://",
    "sasl_plaintext": "sasl://",
    "sasl_ssl": "tls+sasl://",
}
"""The listeners' names, which are Kafka's of that way to connect, and what stands before their addresses."""
ADMIN: Final = "admin"
USER: Final = "testuser"
"""Who the clients of librdkafka's and franz-go's tests are."""
PASSWORDS: Final[Mapping[str, str]] = {
    ADMIN: "admin-secret",
    USER: "testpass",
    "test": "test",  # of aiokafka's tests
    "test2": "test2",
    "alice": "alice-secret",  # of kafka-python's
    "sasl_user": "sasl_user",  # of confluent-kafka-python's
}
"""All users. The first one is in the node's file and may do everything, the others are in the cluster's metadata."""
KEY_PASSWORD: Final = "abcdefgh"
"""Of the archive that has the client's key."""
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
PATIENCE_S: Final = 60


class Security:
    """Certificates, keys, a file of users and an issuer of tokens, all in `folder`, and who connects by them."""

    def __init__(self, folder: Path) -> None:
        authority, other = Authority(folder), Authority(folder / "other")
        self.folder = folder
        self.ca = authority.ca
        self.issuer = Issuer(folder)
        self._node, self.client = authority.node(), authority.client()
        self._users = set_user(folder / "users", ADMIN, PASSWORDS[ADMIN])
        self.client_der, self.ca_der = folder / "client.der", folder / "ca.der"
        self.all_cas, self.archive = folder / "all_cas.pem", folder / "client.pfx"
        ca, other_ca = (read_certificate(each.ca.read_bytes()) for each in (authority, other))
        client, *_ = read_certificates(self.client.certificate.read_bytes())
        self.client_der.write_bytes(client.public_bytes(Encoding.DER))
        self.ca_der.write_bytes(ca.public_bytes(Encoding.DER))
        self.all_cas.write_bytes(other.ca.read_bytes() + authority.ca.read_bytes())
        key = read_key(self.client.key.read_bytes(), None)
        encryption = BestAvailableEncryption(KEY_PASSWORD.encode())
        self.archive.write_bytes(pkcs12.serialize_key_and_certificates(None, key, client, [other_ca, ca], encryption))
        for name, original in {
            "ca.crt": self.ca,  # aiokafka's names, and kafka-python's
            "client.crt": self.client.certificate,
            "ca-cert": self.ca,
        }.items():
            (folder / name).write_bytes(original.read_bytes())

    def settings(self) -> dict[str, str]:
        """Return what a node is set to, its listeners aside."""
        return {
            "ssl.certificate.location": str(self._node.certificate),
            "ssl.key.location": str(self._node.key),
            "sasl.users.location": str(self._users),
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "sasl.oauthbearer.jwks.endpoint.url": self.issuer.url,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.clock.skew.seconds": "0",
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": f"User:{ADMIN}",
            "allow.everyone.if.no.acl.found": "true",
        }

    def client_settings(self, protocol: str, user: str = ADMIN, mechanism: str = "SCRAM-SHA-256") -> dict[str, str]:
        """Return what a client is set to, as librdkafka names it. `protocol` is a listener's name."""
        settings = {"security.protocol": protocol}
        if protocol.endswith("ssl"):
            settings |= {
                "ssl.ca.location": str(self.ca),
                "ssl.certificate.location": str(self.client.certificate),
                "ssl.key.location": str(self.client.key),
                "ssl.key.password": KEY_PASSWORD,
            }
        if protocol.startswith("sasl"):
            settings |= {"sasl.mechanism": mechanism}
            if mechanism != "OAUTHBEARER":
                settings |= {"sasl.username": user, "sasl.password": PASSWORDS[user]}
        return settings

    def add_users(self, bootstrap: str) -> None:
        """Add all users but the first one, by the listener `sasl_plaintext`."""
        admin = AdminClient({"bootstrap.servers": bootstrap, **self.client_settings("sasl_plaintext")})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            added = [
                UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, ITERATIONS_MIN), password.encode())
                for user, password in PASSWORDS.items()
                if user != ADMIN
            ]
            for each in admin.alter_user_scram_credentials(added).values():
                each.result(PATIENCE_S)
