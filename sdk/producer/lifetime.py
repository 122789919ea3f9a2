"""The end of producers that nobody closes: dropped, in a forked child, or at the end of the program."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from functools import partial
from typing import Any, Final

from semel.protocol.errors import SemelError
from semel.protocol.wording import counted
from semel.sdk.producer.core import ProducerCore

_log = logging.getLogger("semel.producer")

_LAST_CLOSE_TIMEOUT_S: Final = 5.0
"""How long the end of a program may wait for a producer that nobody closed."""

_cores: weakref.WeakSet[ProducerCore] = weakref.WeakSet()


def close_when_dropped(owner: object, core: ProducerCore) -> weakref.finalize[..., Any]:
    """Close `core` when `owner` is collected without having been closed. Detach the result at a close."""
    _cores.add(core)
    finalizer = weakref.finalize(owner, _close_dropped, core)
    finalizer.atexit = False  # then all are closed one after the other, below
    return finalizer


def _close_dropped(core: ProducerCore) -> None:
    core.drop()
    if not core.client.io.forked:
        core.client.io.close_aside(partial(_close_quietly, core))


def _close_quietly(core: ProducerCore) -> None:
    unsent = core.accumulator.incomplete_records()
    try:
        core.close(_LAST_CLOSE_TIMEOUT_S)
    except SemelError as error:
        if unsent:
            _log.error("%s of a producer that was not closed may be lost: %s", counted(unsent, "record"), error)
        else:
            _log.warning("a producer that was not closed had nothing left to send, but could not end well: %s", error)


def _close_at_exit() -> None:
    """Bring what a program sent without flush or close to the node before it ends."""
    for core in list(_cores):
        _close_quietly(core)


def close_producers_of(address: str) -> None:
    """Do the same for the producers of a node that ends now, because the program does."""
    for core in list(_cores):
        if address in core.options.client.addresses:
            _close_quietly(core)


def _close_gates_in_child() -> None:
    for core in _cores:
        core.accumulator.gate_closed = True


atexit.register(_close_at_exit)
os.register_at_fork(after_in_child=_close_gates_in_child)
