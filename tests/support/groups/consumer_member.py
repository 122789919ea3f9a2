"""A consumer of the consumer group protocol (KIP-848) as it should be, one heartbeat at a time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from uuid import UUID

from semel.group_coordinator.consumer.topics import Topic, Topics
from semel.protocol.api.consumer_groups import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    NO_PARTITIONS,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    Partitions,
    TopicIdPartition,
)
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import TopicId

REBALANCE_MS = 60_000


def topics(**counts: int) -> Topics:
    """Topics by name with their partition counts; underscores stand for dashes."""
    return Topics(Topic(name.replace("_", "-"), topic_id(name), count) for name, count in counts.items())


def topic_id(name: str) -> TopicId:
    return TopicId(UUID(bytes=name.replace("_", "-").encode().ljust(16, b".")[:16]))


def partitions(name: str, *numbers: int) -> Partitions:
    return frozenset(TopicIdPartition(topic_id(name), number) for number in numbers)


@dataclass(eq=False)
class Member:
    """It says what changed, repeats everything after an answer was lost, and gives up before it takes."""

    member_id: str
    group: str
    names: tuple[str, ...] | None = ("orders",)
    regex: str | None = None
    instance: str | None = None
    assignor: str | None = None
    epoch: int = JOIN_EPOCH
    held: Partitions = NO_PARTITIONS
    assigned: Partitions = NO_PARTITIONS
    fenced: bool = False
    _said: Partitions | None = field(default=None)
    _says_all: bool = True

    def request(self) -> ConsumerGroupHeartbeatRequest:
        """Make the next heartbeat."""
        says_all = self._says_all or self.epoch == JOIN_EPOCH
        request = ConsumerGroupHeartbeatRequest(
            self.group,
            self.member_id,
            self.epoch,
            self.instance,
            owned=self.held if says_all or self.held != self._said else None,
            client_id="client",
            client_host="/127.0.0.1",
        )
        if says_all:
            request = replace(
                request,
                rebalance_timeout_ms=REBALANCE_MS,
                topic_names=self.names if self.names is not None else (),
                topic_regex=self.regex,
                server_assignor=self.assignor,
            )
        self._says_all = False
        if request.owned is not None:
            self._said = request.owned
        return request

    def answered(self, answer: object) -> None:
        """Take an answer: an assignment is worked towards in two steps, `give_up` and `take`."""
        if isinstance(answer, SemelError):
            self._says_all = True
            if answer.code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
                self.lose_everything()
            elif answer.code is ErrorCode.FENCED_INSTANCE_ID:
                self.lose_everything()
                self.fenced = True
            else:
                assert answer.code in (ErrorCode.UNRELEASED_INSTANCE_ID, ErrorCode.NOT_COORDINATOR), answer
            return
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.assigned = answer.assignment

    def lost(self) -> None:
        """The answer did not come."""
        self._says_all = True

    def reconcile(self) -> None:
        """Give up what it is not to have any more, and take what it is to have."""
        self.held = self.assigned

    def lose_everything(self) -> None:
        self.epoch = JOIN_EPOCH
        self.held = self.assigned = NO_PARTITIONS
        self._said = None
        self._says_all = True

    def leave_request(self, *, will_be_back: bool = False) -> ConsumerGroupHeartbeatRequest:
        epoch = LEAVE_STATIC_EPOCH if will_be_back else LEAVE_EPOCH
        self.lose_everything()
        return ConsumerGroupHeartbeatRequest(self.group, self.member_id, epoch, self.instance)
