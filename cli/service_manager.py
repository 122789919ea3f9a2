"""Tells systemd how a node is doing: sd_notify's protocol, for units with Type=notify."""

from __future__ import annotations

import logging
import os
import socket

_log = logging.getLogger("semel.serve")

ENVIRONMENT = "NOTIFY_SOCKET"


def tell_service_manager(*assignments: str) -> None:
    """Send assignments such as READY=1 to the socket that systemd names. Without one, this does nothing.

    Never raises: a node whose service manager does not listen still serves, and says so in its log.
    """
    address = os.environ.get(ENVIRONMENT, "")
    if not address.startswith(("/", "@")):  # systemd knows others, for virtual machines
        return
    path = f"\0{address[1:]}" if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto("\n".join(assignments).encode(), path)
    except OSError as error:
        _log.warning("the service manager at %s=%s can't be told %s: %s", ENVIRONMENT, address, assignments[0], error)
