"""Opens a channel to a node's gRPC listener: encrypted, or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc

from semel.sdk.transport.security import Encryption


def open_channel(target: str, encryption: Encryption | None, options: Sequence[tuple[str, Any]] = ()) -> grpc.Channel:
    """Return a channel that uses no HTTP proxy. Raises `UsageError` where a file of `encryption` can't be used."""
    further = (("grpc.enable_http_proxy", 0), *options)
    if encryption is None:
        return grpc.insecure_channel(target, options=further)
    return grpc.secure_channel(target, encryption.credentials(), options=further)
