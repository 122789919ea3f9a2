"""What only a node can say of the sink's options, asked before any task has worked for nothing. Runs on the driver."""

from __future__ import annotations

from typing import Final

from semel.protocol.errors import SemelError, UsageError
from semel.sdk.admin.core import AdminCore
from semel.spark.clients import Address, client_for, run
from semel.spark.sink.options import SinkOptions

_LIMIT: Final = "transaction.max.timeout.ms"
_LIMIT_DEFAULT_MS: Final = 900_000

_found: dict[Address, int] = {}


def check_transaction_timeout(options: SinkOptions) -> None:
    """Refuse a timeout that the node does not allow. Asks, once in a process, where it is above the node's default.

    A node that can't be asked, or allows less than by default, is left to the tasks: they are refused by the same rule.
    """
    timeout_ms = options.transaction_timeout_ms
    if timeout_ms <= _LIMIT_DEFAULT_MS:
        return
    try:
        limit_ms = _limit_ms(options.address)
    except SemelError:
        return
    if timeout_ms > limit_ms:
        raise UsageError(
            f"option kafka.transaction.timeout.ms ({timeout_ms}) is more than the node allows, {limit_ms}: lower it, "
            f"or raise the node's setting {_LIMIT}"
        )


def _limit_ms(address: Address) -> int:
    if address not in _found:
        client = client_for(address)
        nodes = run(client, client.cluster.refresh()).nodes
        (entry,) = run(client, AdminCore(client).node_configs(min(nodes), [_LIMIT]))
        _found[address] = int(entry.value)
    return _found[address]
