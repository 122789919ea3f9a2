"""The options of producers, checked at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from semel.protocol.compression import Compression
from semel.protocol.errors import UsageError
from semel.protocol.int_bounds import INT64_MAX
from semel.sdk.producer.accumulator import AccumulatorOptions
from semel.sdk.producer.partitioner import Partitioner
from semel.sdk.producer.sender import IN_FLIGHT_MAX, SenderOptions
from semel.sdk.transport.options import ClientOptions, check_bool, check_callable, check_choice, check_int, check_text
from semel.sdk.transport.serde import Serializer, as_serializer

_ACKS = {"all": -1, -1: -1, "-1": -1, 0: 0, "0": 0, 1: 1, "1": 1}
_COMPRESSIONS = {codec.name.lower(): codec for codec in Compression}


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """Everything a producer was told, checked."""

    client: ClientOptions
    accumulator: AccumulatorOptions = field(default_factory=AccumulatorOptions)
    sender: SenderOptions = field(default_factory=SenderOptions)
    transactional_id: str | None = None
    acks: int = -1
    max_block_ms: int = 60_000
    transaction_timeout_ms: int = 60_000
    two_phase: bool = False
    auto_create_topics: bool = False
    partitioner: Partitioner | None = None
    key_serializer: Serializer | None = None
    value_serializer: Serializer | None = None


def producer_options(
    bootstrap: str | Sequence[str] | None,
    *,
    transactional_id: str | None,
    acks: str | int,
    idempotent: bool | None,
    linger_ms: int,
    batch_size_bytes: int,
    compression: str | None,
    compression_level: int | None,
    buffer_memory_bytes: int,
    record_bytes_max: int,
    request_bytes_max: int,
    max_in_flight: int,
    partitioner: Partitioner | None,
    key_serializer: Serializer | str | None,
    value_serializer: Serializer | str | None,
    delivery_timeout_ms: int,
    request_timeout_ms: int,
    connect_timeout_ms: int | None,
    max_block_ms: int,
    transaction_timeout_ms: int,
    two_phase: bool,
    retry_backoff_ms: int,
    retry_backoff_max_ms: int,
    metadata_max_age_ms: int,
    auto_create_topics: bool,
    client_id: str,
) -> ProducerOptions:
    """Return the options of a producer, each checked. Raises `UsageError`. See `Producer`."""
    if isinstance(acks, bool) or not isinstance(acks, (int, str)) or acks not in _ACKS:
        raise UsageError(f'option acks must be "all", 1 or 0, not {acks!r}')
    acks_number = _ACKS[acks]
    if idempotent is None:
        idempotent = acks_number == -1
    check_bool("idempotent", idempotent)
    if idempotent and acks_number != -1:
        raise UsageError(f'an idempotent producer needs acks="all", not {acks!r}; or set idempotent=False')
    if transactional_id is not None:
        check_text("transactional_id", transactional_id)
        if not idempotent:
            raise UsageError(
                'transactions need acks="all" and idempotence; leave acks and idempotent at their defaults'
            )
    if check_bool("two_phase", two_phase) and transactional_id is None:
        raise UsageError("two_phase=True is for transactions, which need a transactional_id")
    check_int("max_in_flight", max_in_flight, 1, 1_000)
    if idempotent and max_in_flight > IN_FLIGHT_MAX:
        raise UsageError(
            f"max_in_flight is {IN_FLIGHT_MAX} at most for an idempotent producer, not {max_in_flight}: a node "
            "remembers that many batches of a producer"
        )
    codec = _COMPRESSIONS[check_choice("compression", compression or "none", tuple(_COMPRESSIONS))]
    if compression_level is not None:
        check_int("compression_level", compression_level, -(2**17), 22)
    check_int("linger_ms", linger_ms, 0)
    check_int("delivery_timeout_ms", delivery_timeout_ms, 1)
    check_int("record_bytes_max", record_bytes_max, 64, (1 << 30))
    check_int("buffer_memory_bytes", buffer_memory_bytes, 1, INT64_MAX)
    if delivery_timeout_ms < linger_ms:
        raise UsageError(f"delivery_timeout_ms ({delivery_timeout_ms}) must be longer than linger_ms ({linger_ms})")
    return ProducerOptions(
        client=ClientOptions.checked(
            bootstrap,
            client_id=client_id,
            api_timeout_ms=max_block_ms,
            request_timeout_ms=request_timeout_ms,
            connect_timeout_ms=connect_timeout_ms,
            retry_backoff_ms=retry_backoff_ms,
            retry_backoff_max_ms=retry_backoff_max_ms,
            metadata_max_age_ms=metadata_max_age_ms,
        ),
        accumulator=AccumulatorOptions(
            batch_size_bytes=check_int("batch_size_bytes", batch_size_bytes, 1, 1 << 30),
            linger_ms=linger_ms,
            buffer_memory_bytes=buffer_memory_bytes,
            record_bytes_max=record_bytes_max,
            compression=codec,
            compression_level=compression_level,
        ),
        sender=SenderOptions(
            idempotent=idempotent,
            transactional=transactional_id is not None,
            max_in_flight=max_in_flight,
            request_bytes_max=check_int("request_bytes_max", request_bytes_max, 1, 1 << 30),
            linger_ms=linger_ms,
            delivery_timeout_ms=delivery_timeout_ms,
            retry_backoff_ms=retry_backoff_ms,
            retry_backoff_max_ms=retry_backoff_max_ms,
        ),
        transactional_id=transactional_id,
        acks=acks_number,
        max_block_ms=check_int("max_block_ms", max_block_ms, 1),
        auto_create_topics=check_bool("auto_create_topics", auto_create_topics),
        transaction_timeout_ms=check_int("transaction_timeout_ms", transaction_timeout_ms, 1),
        two_phase=two_phase,
        partitioner=check_callable("partitioner", partitioner),
        key_serializer=as_serializer("key_serializer", key_serializer),
        value_serializer=as_serializer("value_serializer", value_serializer),
    )
