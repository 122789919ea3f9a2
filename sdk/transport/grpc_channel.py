"""Opens a channel to a node's gRPC listener: encrypted, or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc

from semel.sdk.transport.security import Tls


def open_channel(target: str, tls: Tls | None, options: Sequence[tuple[str, Any]] = ()) -> grpc.Channel:
    """Return a channel that uses no HTTP proxy. Raises `UsageError` where a file of `tls` can't be used."""
    further = (("grpc.enable_http_proxy", 0), *options)
    if tls is None:
        return grpc.insecure_channel(target, options=further)
    return grpc.secure_channel(target, tls.credentials(), options=further)
