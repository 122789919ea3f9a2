"""What clients of Kafka's protocol ask for, in lines that two runs have in common: recordings are made of them.

A line has the API, its version, and those of its fields that matter. Ids are letters in the order of their first use,
times are left out, equal polls and heartbeats that follow each other are one line, and a request that is answered with
"not yet" is left out. What ends with `->` was refused, or its answer was lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final
from uuid import UUID

from kio.serial import entity_reader

from semel.protocol.batch_header import iter_batches
from semel.protocol.consumer_protocol import decode_subscription
from semel.protocol.errors import ErrorCode
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.entities import load_entity

LOST: Final = "lost"
NOT_YET: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    }
)
"""What is answered, or not, as the time has it: the same request comes again."""

_FAMILIES: Final = {
    "producer": (
        ApiKey.PRODUCE,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.END_TXN,
    ),
    "group": (
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.LEAVE_GROUP,
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
    ),
    "heartbeats": (ApiKey.HEARTBEAT, ApiKey.CONSUMER_GROUP_HEARTBEAT),
    "fetches": (ApiKey.FETCH,),
}
LOOKUPS: Final = "lookups"
"""Everything else: which there are, in which version."""
_FAMILY_OF: Final = {key: family for family, keys in _FAMILIES.items() for key in keys}
_POLLED: Final = ("heartbeats", "fetches")
_SESSION_END: Final = -1


@dataclass(slots=True, eq=False)
class Asked:
    """One request. `line` is what is told of it; None where it is told of as a lookup."""

    key: ApiKey
    version: int
    stream: str
    line: str | None
    outcome: str = LOST
    is_told: bool = True


class RequestStory:
    """Takes requests and answers in the order in which they pass, and tells of them by client id and family of APIs."""

    def __init__(self) -> None:
        self._asked: list[Asked] = []
        self._letters: dict[tuple[str, Any], str] = {}
        self._topics: dict[UUID, str] = {}
        self._sessions: dict[int, int] = {}

    def asked(self, client_id: str, key: int, version: int, body: bytes, in_flight: int | None = None) -> Asked:
        """Take note of a request, and return what is to be told of its answer.

        in_flight: how many requests of the API wait for their answer on the connection, where that matters
        """
        api = ApiKey(key)
        if api is ApiKey.API_VERSIONS:  # a node answers those it has not, too
            made = Asked(api, version, f"{client_id} {LOOKUPS}", None)
        else:
            request = _read(api, version, "request", body)
            family = _FAMILY_OF.get(api, LOOKUPS)
            parts = None if family == LOOKUPS else [f"{api.name} v{version}", *self._describe(api, request)]
            if parts is not None and in_flight is not None:
                parts.append(f"in_flight={in_flight}")
            made = Asked(api, version, f"{client_id} {family}", None if parts is None else " ".join(parts))
        self._asked.append(made)
        return made

    def answered(self, asked: Asked, body: bytes) -> None:
        """Take note of an answer that reached the client."""
        asked.outcome = ""
        if asked.key is ApiKey.API_VERSIONS:
            return
        answer = _read(asked.key, asked.version, "response", body)
        if asked.key is ApiKey.METADATA and asked.version >= 10:
            self._topics |= {topic.topic_id: topic.name for topic in answer.topics if topic.name and topic.topic_id}
        codes = {code for code in codes_in(answer) if code is not ErrorCode.NONE}
        asked.is_told = not codes & NOT_YET
        asked.outcome = ",".join(sorted(code.name for code in codes))

    def streams(self) -> dict[str, list[str]]:
        """Return the lines of each stream, in order; lookups sorted."""
        found: dict[str, list[str]] = {}
        for asked in self._asked:
            lines = found.setdefault(asked.stream, [])
            if asked.line is None:
                if (line := f"{asked.key.name} v{asked.version}") not in lines:
                    lines.append(line)
                continue
            is_polled = asked.stream.endswith(_POLLED)
            # The last poll of a client that ends may have no answer.
            line = asked.line + (f" -> {asked.outcome}" if asked.outcome and not is_polled else "")
            if asked.is_told and not (is_polled and lines and lines[-1] == line):
                lines.append(line)
        return {
            name: sorted(lines) if name.endswith(LOOKUPS) else lines for name, lines in sorted(found.items()) if lines
        }

    # --- What matters of each request ---------------------------------------------------------------------------------

    def _describe(self, key: ApiKey, request: Any) -> Iterator[str]:
        match key:
            case ApiKey.PRODUCE:
                yield from self._produce(request)
            case ApiKey.FETCH:
                yield from self._fetch(request)
            case ApiKey.JOIN_GROUP:
                yield from self._join(request)
            case ApiKey.SYNC_GROUP:
                yield from self._member(request)
                yield f"protocol={_value(request, 'protocol_type', '-')}/{_value(request, 'protocol_name', '-')}"
                yield f"assigns_to={len(request.assignments)}"
            case ApiKey.LEAVE_GROUP:
                members = request.members if hasattr(request, "members") else (request,)
                yield "members=" + ",".join(self._letter("member", one.member_id) for one in members)
            case ApiKey.OFFSET_FETCH:
                yield from self._offset_fetch(request)
            case ApiKey.CONSUMER_GROUP_HEARTBEAT:
                yield from self._new_heartbeat(request)
            case _:
                yield from self._of_transaction(request)

    def _of_transaction(self, request: Any) -> Iterator[str]:
        """What has a transaction or a generation, or both."""
        named = _value(request, "transactional_id") or _value(request, "v3_and_below_transactional_id")
        producer_id = _value(request, "producer_id", _value(request, "v3_and_below_producer_id"))
        if producer_id is not None:
            yield f"transactional={_word(named is not None)}"
            epoch = _value(request, "producer_epoch", _value(request, "v3_and_below_producer_epoch"))
            yield f"producer={self._producer(producer_id, epoch)}"
        if (committed := _value(request, "committed")) is not None:
            yield "commit" if committed else "abort"
        if (group := _value(request, "group_id")) is not None:
            yield f"group={group}"
        yield from self._member(request)
        topics = _value(request, "topics", _value(request, "v3_and_below_topics", ()))
        yield from self._places(topics)

    def _member(self, request: Any) -> Iterator[str]:
        generation = _value(request, "generation_id", _value(request, "generation_id_or_member_epoch"))
        if generation is not None:
            yield f"generation={generation}"
        if (member := _value(request, "member_id")) is not None:
            yield f"member={self._letter('member', member)}"
        if (instance := _value(request, "group_instance_id")) is not None:
            yield f"instance={instance}"

    def _produce(self, request: Any) -> Iterator[str]:
        yield f"acks={request.acks}"
        yield f"transactional={_word(_value(request, 'transactional_id') is not None)}"
        for topic in request.topic_data:
            for one in topic.partition_data:
                yield f"{self._topic(topic)}-{one.index}"
                for header in iter_batches(bytes(one.records)):
                    yield f"producer={self._producer(header.producer_id, header.producer_epoch)}"
                    yield f"sequence={header.base_sequence}"
                    yield f"records={header.record_count}"
                    yield f"batch_transactional={_word(header.is_transactional)}"

    def _fetch(self, request: Any) -> Iterator[str]:
        yield f"isolation={request.isolation_level}"
        session, epoch = request.session_id, request.session_epoch
        if session == 0:
            yield "session=new" if epoch == 0 else "session=none"
        else:
            is_next = epoch == self._sessions.get(session, 0) + 1
            yield "session=" + ("end" if epoch == _SESSION_END else "next" if is_next else f"epoch {epoch}")
            self._sessions[session] = epoch
        yield from self._places(request.topics)
        for topic in request.forgotten_topics_data:
            yield "forgets=" + ",".join(f"{self._topic(topic)}-{number}" for number in topic.partitions)

    def _join(self, request: Any) -> Iterator[str]:
        yield from self._member(request)
        for one in request.protocols:
            topics = ",".join(decode_subscription(bytes(one.metadata)).topics)
            yield f"{request.protocol_type}/{one.name}({topics})"

    def _offset_fetch(self, request: Any) -> Iterator[str]:
        if (stable := _value(request, "require_stable")) is not None:
            yield f"require_stable={_word(stable)}"
        for group in request.groups if hasattr(request, "groups") else (request,):
            yield f"group={group.group_id}"
            if _value(group, "member_id") is not None:
                yield f"member={self._letter('member', group.member_id)} epoch={group.member_epoch}"
            yield from self._places(_value(group, "topics", ()))

    def _new_heartbeat(self, request: Any) -> Iterator[str]:
        yield f"member={self._letter('member', request.member_id)}"
        yield f"epoch={request.member_epoch}"
        if request.rebalance_timeout.total_seconds() >= 0:
            yield "rebalance_timeout"
        for name in ("instance_id", "subscribed_topic_names", "subscribed_topic_regex", "server_assignor"):
            if (value := _value(request, name)) is not None:
                yield f"{name}={','.join(value) if isinstance(value, tuple) else value}"
        if request.topic_partitions is not None:
            owned = ",".join(
                f"{self._topic(topic)}-{number}" for topic in request.topic_partitions for number in topic.partitions
            )
            yield f"owns={owned or 'nothing'}"

    # --- Ids and places -----------------------------------------------------------------------------------------------

    def _letter(self, kind: str, value: Any) -> str:
        if not value:
            return "none"
        if (kind, value) not in self._letters:
            self._letters[kind, value] = chr(ord("A") + sum(known == kind for known, _ in self._letters))
        return self._letters[kind, value]

    def _producer(self, producer_id: int, epoch: int) -> str:
        return "none" if producer_id < 0 else f"{self._letter('producer', producer_id)}.{epoch}"

    def _topic(self, topic: Any) -> str:
        name = _value(topic, "name", _value(topic, "topic"))
        return name if name is not None else self._topics.get(topic.topic_id, "unknown")

    def _places(self, topics: Sequence[Any]) -> Iterator[str]:
        """Yield the partitions, with offsets where there are any, and the leader epochs that are given for them."""
        epochs: set[str] = set()
        found: list[str] = []
        for topic in topics or ():
            for one in _value(topic, "partitions", _value(topic, "partition_indexes", ())):
                if isinstance(one, int):
                    found.append(f"{self._topic(topic)}-{one}")
                    continue
                number = _value(one, "partition", _value(one, "partition_index"))
                offset = _value(one, "fetch_offset", _value(one, "committed_offset"))
                found.append(f"{self._topic(topic)}-{number}@{offset}")
                epochs.add(str(_value(one, "current_leader_epoch", _value(one, "committed_leader_epoch"))))
        yield from sorted(found)
        if epochs:
            yield f"leader_epoch={','.join(sorted(epochs))}"


def codes_in(answer: Any) -> Iterator[ErrorCode]:
    """Yield all error codes of a response."""
    for one in fields(answer):
        value = getattr(answer, one.name)
        if one.name.endswith("error_code"):
            yield ErrorCode(int(value))
        elif isinstance(value, tuple):
            for each in value:
                if is_dataclass(each):
                    yield from codes_in(each)


def _value(entity: Any, name: str, default: Any = None) -> Any:
    return getattr(entity, name, default)


def _word(flag: object) -> str:
    return "yes" if flag else "no"


def _read(key: ApiKey, version: int, kind: str, body: bytes) -> Any:
    entity, _ = entity_reader(load_entity(key, version, kind))(body, 0)
    return entity
