"""Kafka's names for the options of clients: the one table that the clients, their types and the documentation take.

Each client takes the names whose option it has, as Kafka's settings spell them ("group.id") and as kafka-python does
(`group_id`). `python -m semel.sdk.transport.kafka_names` prints the table of docs/moving-from-kafka.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from semel.protocol.errors import UsageError
from semel.sdk.transport.security import SecurityNames

AUTO_COMMIT_INTERVAL_MS: Final = 5_000
"""How often Kafka's clients commit where nothing else is said."""

_RESETS: Final = {
    "none": "error",
    "smallest": "earliest",
    "beginning": "earliest",
    "largest": "latest",
    "end": "latest",
}
_ASSIGNORS: Final = {
    "range": "range",
    "roundrobin": "roundrobin",
    "sticky": "sticky",
    "cooperativesticky": "cooperative-sticky",
}


def _reset(value: object) -> object:
    return _RESETS.get(value, value) if isinstance(value, str) else value


def _auto_commit(value: object) -> object:
    if not isinstance(value, bool):
        raise UsageError(f"option enable_auto_commit must be True or False, not {type(value).__name__} {value!r}")
    return AUTO_COMMIT_INTERVAL_MS if value else None


def _assignors(value: object) -> object:
    """Return the names of assignors given as names, as Java's class names, or as kafka-python's classes."""
    if isinstance(value, str):
        return [_assignor(part.strip()) for part in value.split(",")]
    if isinstance(value, Iterable):
        return [_assignor(one) for one in value]
    return value


def _assignor(given: object) -> object:
    name = getattr(given, "name", given)
    if not isinstance(name, str):
        return given
    short = name.rpartition(".")[2].removesuffix("Assignor").removesuffix("Partition").lower()
    return _ASSIGNORS.get(short, name)


@dataclass(frozen=True, slots=True)
class KafkaName:
    """A setting of Kafka's clients.

    options:  what it is here: the first that a client has; with `all_of_them`, each of them
    of:       the clients that have it
    convert:  makes the option's value of the setting's
    note:     for the documentation
    """

    setting: str
    options: tuple[str, ...]
    of: tuple[str, ...]
    convert: Callable[[object], object] | None = None
    note: str = ""
    all_of_them: bool = False

    @property
    def keyword(self) -> str:
        """As kafka-python spells it."""
        return self.setting.replace(".", "_")

    @property
    def documented(self) -> tuple[str, ...]:
        """The options that it stands for in most clients."""
        return self.options if self.all_of_them else self.options[:1]


def _same(setting: str, of: tuple[str, ...] = (), note: str = "") -> KafkaName:
    return KafkaName(setting, (setting.replace(".", "_"),), of, note=note)


_ALL: Final = ("Producer", "Consumer", "Admin", "SharedTransaction", "Sink", "Outbox")
_PRODUCER: Final = ("Producer",)
_CONSUMER: Final = ("Consumer",)


NAMES: Final = (
    KafkaName(
        "bootstrap.servers",
        ("bootstrap",),
        _ALL,
        note="either port of a node: gRPC (9094) or Kafka (9092)",
    ),
    _same("client.id", ("Producer", "Consumer", "Admin", "SharedTransaction")),
    _same("request.timeout.ms", ("Producer", "Consumer", "Admin", "SharedTransaction")),
    KafkaName("default.api.timeout.ms", ("api_timeout_ms",), ("Consumer", "Admin")),
    _same("metadata.max.age.ms", _PRODUCER),
    _same("retry.backoff.ms", _PRODUCER),
    _same("retry.backoff.max.ms", _PRODUCER),
    # of producers
    _same("transactional.id", _PRODUCER),
    KafkaName(
        "transaction.timeout.ms",
        ("transaction_timeout_ms", "timeout_ms"),
        ("Producer", "SharedTransaction"),
        note="of `SharedTransaction`: `timeout_ms`",
    ),
    _same("acks", _PRODUCER),
    KafkaName("enable.idempotence", ("idempotent",), _PRODUCER),
    _same("linger.ms", ("Producer", "Sink")),
    KafkaName("batch.size", ("batch_size_bytes",), _PRODUCER),
    KafkaName("compression.type", ("compression",), _PRODUCER),
    KafkaName("buffer.memory", ("buffer_memory_bytes",), _PRODUCER),
    KafkaName(
        "max.request.size", ("record_bytes_max", "request_bytes_max"), _PRODUCER, note="sets both", all_of_them=True
    ),
    KafkaName("max.in.flight.requests.per.connection", ("max_in_flight",), _PRODUCER),
    _same("max.block.ms", ("Producer", "SharedTransaction")),
    _same("delivery.timeout.ms", _PRODUCER),
    _same("key.serializer", _PRODUCER, 'a function, `"json"` or `"text"`'),
    _same("value.serializer", _PRODUCER, 'a function, `"json"` or `"text"`'),
    KafkaName("allow.auto.create.topics", ("auto_create_topics",), _PRODUCER),
    # of consumers
    KafkaName("group.id", ("group",), ("Consumer", "Sink")),
    KafkaName("group.instance.id", ("instance_id",), _CONSUMER),
    _same("key.deserializer", _CONSUMER, 'a function, `"json"` or `"text"`'),
    _same("value.deserializer", _CONSUMER, 'a function, `"json"` or `"text"`'),
    KafkaName("auto.offset.reset", ("offset_reset",), ("Consumer", "Sink"), _reset, '"none" is `"error"`'),
    KafkaName("isolation.level", ("isolation",), _CONSUMER),
    KafkaName(
        "enable.auto.commit",
        ("auto_commit_interval_ms",),
        _CONSUMER,
        _auto_commit,
        "True: 5000 ms, or the interval that is given; False: `None`",
    ),
    _same("auto.commit.interval.ms", _CONSUMER, "also switches auto-commit on"),
    KafkaName("partition.assignment.strategy", ("assignors",), _CONSUMER, _assignors, "names, or Kafka's classes"),
    _same("session.timeout.ms", _CONSUMER),
    _same("heartbeat.interval.ms", _CONSUMER),
    _same("max.poll.interval.ms", _CONSUMER),
    KafkaName("fetch.max.wait.ms", ("max_wait_ms",), _CONSUMER),
    KafkaName("fetch.min.bytes", ("min_bytes",), _CONSUMER),
    KafkaName("fetch.max.bytes", ("max_bytes",), _CONSUMER),
    KafkaName("max.partition.fetch.bytes", ("max_partition_bytes",), _CONSUMER),
    KafkaName(
        "client.rack",
        ("rack",),
        _CONSUMER,
        note="see [Read from the nearest replica](cluster.md#read-from-the-nearest-replica)",
    ),
)

_BY_NAME: Final = {spelling: one for one in NAMES for spelling in (one.setting, one.keyword)}


class AdminKafkaNames(SecurityNames, total=False):
    """What an `Admin` takes under kafka-python's names."""

    bootstrap_servers: str | Sequence[str]
    default_api_timeout_ms: int


class ProducerKafkaNames(SecurityNames, total=False):
    """What a `Producer` takes under kafka-python's names."""

    bootstrap_servers: str | Sequence[str]
    enable_idempotence: bool
    batch_size: int
    compression_type: str | None
    buffer_memory: int
    max_request_size: int
    max_in_flight_requests_per_connection: int
    allow_auto_create_topics: bool


class ConsumerKafkaNames(SecurityNames, total=False):
    """What a `Consumer` takes under kafka-python's names."""

    bootstrap_servers: str | Sequence[str]
    default_api_timeout_ms: int
    group_id: str | None
    group_instance_id: str | None
    auto_offset_reset: str
    isolation_level: str
    enable_auto_commit: bool
    partition_assignment_strategy: str | Sequence[Any]
    fetch_max_wait_ms: int
    fetch_min_bytes: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    client_rack: str


def in_our_names(
    owner: str, known: Sequence[str], given: Mapping[str, Any], before: Mapping[str, Any]
) -> dict[str, Any]:
    """Return options by the names that `owner` has for them; others are left as they are.

    before: what was given by its place. Raises `UsageError` where two names of an option have different values.
    """
    found = {name: value for name, value in given.items() if name in known}
    said = {name: name for name in (*before, *found)}
    switches = None
    for name, value in given.items():
        if name in known:
            continue
        one = _BY_NAME.get(name) or _same(name)
        options = tuple(option for option in one.options if option in known)
        if not options:
            found[name] = value
            continue
        if one.convert is _auto_commit:
            switches = name, value
            continue
        wanted = value if one.convert is None else one.convert(value)
        for option in options if one.all_of_them else options[:1]:
            if option in said:
                other = before[option] if option in before else found[option]
                if other != wanted:
                    raise _differing(owner, name, value, said[option], other)
            elif option not in before:
                found[option] = wanted
            said[option] = name
    if switches is not None:
        _switch_auto_commit(owner, *switches, found)
    return found


def _switch_auto_commit(owner: str, name: str, value: object, found: dict[str, Any]) -> None:
    """The one setting that is two of Kafka's: whether to commit, and how often."""
    interval_ms, given = _auto_commit(value), found.get("auto_commit_interval_ms")
    if given is None:
        if "auto_commit_interval_ms" in found and value:
            raise _differing(owner, name, value, "auto_commit_interval_ms", None)
        found["auto_commit_interval_ms"] = interval_ms
    elif not value:
        raise _differing(owner, name, value, "auto_commit_interval_ms", given)


def _differing(owner: str, name: str, value: object, other: str, other_value: object) -> UsageError:
    return UsageError(
        f"{owner}: {name} and {other} are names of one option, with different values: {value!r} and {other_value!r}; "
        "give one of them"
    )


_ADVICE: Final = {
    "api_version": "leave it out: the client asks the node",
    "consumer_timeout_ms": "give a time to the loop: batches(timeout_s=...) or run(..., idle_timeout_s=...)",
    "debug": 'use logging.getLogger("semel").setLevel("DEBUG")',
    "enable_partition_eof": "leave it out: poll() returns None when nothing comes",
    "group_protocol": "leave it out: members of both protocols share a group",
    "max_poll_records": "give max_records to poll(), batches() or run()",
    "message_timeout_ms": "did you mean 'delivery_timeout_ms'?",
    "metadata_broker_list": "did you mean 'bootstrap'?",
    "queue_buffering_max_ms": "did you mean 'linger_ms'?",
    "request_required_acks": "did you mean 'acks'?",
    "retries": "retries are bounded by time: delivery_timeout_ms",
    "transactional_id": "it is an option of Producer; run(transactional_id=...) takes it too",
}
"""What to say of names that are near to an option which does something else. By kafka-python's spelling."""


def advice_for(name: str, known: Sequence[str]) -> str | None:
    """Return what to do in place of an option that clients do not have; None where nothing is known of it."""
    keyword = name.replace(".", "_")
    if keyword.startswith("sasl_"):
        return "clients take sasl_mechanism, sasl_username and sasl_password or sasl_password_location"
    if keyword.startswith("ssl_"):
        return "clients take ssl_ca_location, ssl_certificate_location and ssl_key_location, PEM files"
    advice = _ADVICE.get(keyword)
    if advice is None:
        clients = next((one.of for one in NAMES if keyword in (one.keyword, *one.documented)), None)
        return None if clients is None else f"it is an option of {', '.join(clients)}"
    if advice.startswith("did you mean") and advice.split("'")[1] not in known:
        return None
    return advice


def as_table() -> str:
    """Return the table of the documentation."""
    rows = ["| Kafka's setting | kafka-python's | Option here | Clients | Note |", "|---|---|---|---|---|"]
    for one in NAMES:
        options = ", ".join(f"`{option}`" for option in one.documented)
        clients = "all" if one.of == _ALL else ", ".join(one.of)
        cells = (f"`{one.setting}`", f"`{one.keyword}`", options, clients, one.note)
        rows.append(f"| {' | '.join(cells)} |".replace("|  |", "| |"))
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(as_table(), end="")
