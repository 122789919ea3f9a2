"""Which piece of work a batch is, and the shared transaction in which it is done.

Batches are told apart by the query and the batch's number, which a new driver repeats after a crash; the executions of
one batch by a nonce. Runs on the driver and in tasks, but for `fresh_nonce` and `driver_name`.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from semel.protocol.api.commit_decisions import NAME_BYTES_MAX
from semel.protocol.errors import UsageError
from semel.sdk.shared.api import SharedTransaction
from semel.spark.clients import ProcessTransaction
from semel.spark.sink.options import SinkOptions
from semel.spark.telemetry import Names

A_QUERY_ID: Final = str(uuid.UUID(int=0))
"""As long as any: stands for a query's id before Spark has told it."""


@dataclass(frozen=True, slots=True)
class BatchIdentity:
    """Which piece of work this is: the same whenever it is tried again. `key` holds the query and the sink's name."""

    key: str
    token: str
    sequence: int | None


def batch_identity(app_id: str, sink_name: str, version: int) -> BatchIdentity:
    """Return the identity of one batch in a line of them. Raises `UsageError` where the names are too long."""
    key = f"spark/{_escaped(app_id)}/{sink_name}"
    if len(key.encode()) > NAME_BYTES_MAX:
        raise UsageError(
            f"{key!r} names the decisions of this sink, and has {len(key.encode())} bytes; the most is "
            f"{NAME_BYTES_MAX}: give a shorter sinkName (the topic unless it is given)"
            + ("" if app_id == A_QUERY_ID else " or txnAppId")
        )
    return BatchIdentity(key, f"batch-{version}", version)


def work_name(identity: BatchIdentity, sink_name: str) -> str:
    """Return what all sinks of one batch have in common: goes with a group's offsets, to say who has committed them."""
    return f"{identity.key.removesuffix(f'/{sink_name}')}/{identity.token}"


def _escaped(app_id: str) -> str:
    """Return what no other txnAppId gives, whatever sink's name follows. One without a slash stays as it is."""
    return f"/{quote(app_id, safe='')}" if "/" in app_id else app_id


def app_of(identity: BatchIdentity, sink_name: str) -> str:
    """Return the query's id, or the txnAppId, of a batch that is one in a line."""
    return _unescaped(identity.key.removeprefix("spark/").removesuffix(f"/{sink_name}"))


def _unescaped(app_id: str) -> str:
    return unquote(app_id[1:]) if app_id.startswith("/") else app_id


def fresh_nonce() -> str:
    """Return what tells this execution from every other one, and of which driver it is. Runs on the driver."""
    return f"{driver_name()}.{uuid.uuid4().hex}"


def driver_name() -> str:
    """Return what all Python processes of one driver on its machine have in common; empty where Spark does not say.

    Spark makes folders with random names for each of its JVMs, and tells them to all processes that plan, commit and
    abort. In a task's process they are the executor's: only what is made on the driver is named so.
    """
    folders = os.environ.get("SPARK_LOCAL_DIRS", "")
    return hashlib.sha256(folders.encode()).hexdigest()[:12] if folders else ""


def handle(identity: BatchIdentity, attempt: str, options: SinkOptions, *, opened: bool = False) -> SharedTransaction:
    """Return the shared transaction's handle. It has asked nobody yet, unless it is to be `opened`."""
    address = options.address
    make = ProcessTransaction.open if opened else ProcessTransaction
    return make(
        str(address.bootstrap),
        identity.key,
        address=address,
        token=identity.token,
        sequence=identity.sequence,
        timeout_ms=options.transaction_timeout_ms,
        attempt=attempt,
        run=run_of(attempt),
        one_off=identity.sequence is None,
        client_id=address.client_id,
        max_block_ms=address.api_timeout_ms,
        request_timeout_ms=address.request_timeout_ms,
    )


def attempt_name(run_id: str, nonce: str) -> str:
    """Return the name of one execution of a batch, which tells of which run of the query it is."""
    return f"{run_id}/{nonce}"


def run_of(attempt: str) -> str | None:
    """Return the query's run, which is Spark's job group; None for one that the application has set in its place."""
    run_id, _, _ = attempt.rpartition("/")
    try:
        return str(uuid.UUID(run_id))
    except ValueError:
        return None


def names_of(identity: BatchIdentity, attempt: str, options: SinkOptions) -> Names:
    app_id = "" if identity.sequence is None else app_of(identity, options.sink_name)
    topic, client_id = options.topic, options.address.client_id
    return Names(app_id, options.sink_name, identity.sequence, attempt, topic, client_id)
