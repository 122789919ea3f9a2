"""The secret of the cluster, which is in no log, error or repr (S5)."""

from __future__ import annotations

import hmac
import logging
from hashlib import sha256
from typing import Final

from semel.broker.peers.config import PeerConfig
from semel.runtime.secret_files import BYTES_MAX, BYTES_MIN, read_key
from semel.runtime.setting import ConfigError

_log = logging.getLogger("semel.peers")

PROOF_BYTES: Final = 32
_MARK_BYTES: Final = 16


class ClusterSecret:
    """Signs and checks; what it signs with can't be had from it by mistake."""

    __slots__ = ("__key",)

    def __init__(self, key: bytes) -> None:
        """Raises `ValueError` for one that is too short or too long."""
        if not BYTES_MIN <= len(key) <= BYTES_MAX:
            raise ValueError(f"the secret of a cluster has {BYTES_MIN} to {BYTES_MAX} bytes, not {len(key)}")
        self.__key = bytes(key)

    def __repr__(self) -> str:
        return "ClusterSecret(...)"

    def __reduce__(self) -> str:
        raise TypeError("the secret of a cluster can't be pickled or copied")

    def proof(self, said: bytes) -> bytes:
        """Return what only who has the secret can make of `said` (HMAC-SHA-256)."""
        return hmac.digest(self.__key, said, sha256)

    def mark(self, cluster_id: str) -> str:
        """Return what shows nodes of a cluster that they have the same secret, and does not tell it."""
        return self.proof(b"registered" + cluster_id.encode())[:_MARK_BYTES].hex()

    def proves(self, said: bytes, proof: bytes) -> bool:
        """Say whether `proof` is of `said`, in a time that does not depend on where it is wrong."""
        return hmac.compare_digest(self.proof(said), proof)


def secret_of(config: PeerConfig) -> ClusterSecret | None:
    """Return what a node proves itself with; None for one that is alone. Raises `ConfigError`."""
    if config.cluster_secret_file:
        return read_secret(config.cluster_secret_file)
    if config.peer_listen:
        raise ConfigError(
            f"peer.listen = {config.peer_listen} needs cluster.secret.file: name a file with the secret that all nodes "
            "of the cluster share"
        )
    return None


def read_secret(path: str) -> ClusterSecret:
    """Return the secret in a file. Raises `ConfigError`; warns where others may read the file."""
    key = read_key("cluster.secret.file", path, _log, "can write to every partition")
    try:
        return ClusterSecret(key)
    except ValueError as error:
        raise ConfigError(
            f"cluster.secret.file = {path}: {error}. `openssl rand -base64 48` makes one; all nodes need the same"
        ) from None
