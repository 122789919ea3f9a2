"""A transaction as the user holds it, and what of a consumer it needs for committing offsets with the output."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from semel.protocol.api.groups import NO_GENERATION, NO_MEMBER_ID, OffsetAndMetadata
from semel.protocol.api.shared_transactions import NAME_BYTES_MAX
from semel.protocol.errors import AbortTransactionError, SemelError, UsageError
from semel.protocol.ids import TopicPartition
from semel.sdk.producer.delivery import Delivery, DeliveryCallback
from semel.sdk.telemetry import tracing
from semel.sdk.transport.arguments import check_payload
from semel.sdk.transport.options import check_int, check_name

if TYPE_CHECKING:
    from semel.sdk.producer.api import Producer
    from semel.sdk.producer.serialization import HeadersArgument


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """A consumer's place in its group, by which the coordinator fences zombies (KIP-447, O4).

    The defaults are those of a committer that is no member.
    """

    group_id: str
    generation_id: int = NO_GENERATION
    member_id: str = NO_MEMBER_ID
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class CommitToken:
    """What a commit is recorded under (T13), as `transaction()` takes it."""

    token: str
    payload: bytes = b""
    sequence: int | None = None

    @classmethod
    def checked(cls, token: object, payload: object, sequence: object) -> CommitToken | None:
        """Return the token, None where none is given. Raises `UsageError`."""
        if token is None:
            if payload != b"" or sequence is not None:
                raise UsageError("payload and sequence are recorded with a token; give one: transaction(token='...')")
            return None
        check_name("token", token, NAME_BYTES_MAX)
        whole = None if sequence is None else check_int("sequence", sequence, 0, 2**63 - 1)
        return cls(str(token), check_payload(payload), whole)


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """Names a prepared transaction (KIP-939): store its text where the decision is stored, such as in a database.

    >>> str(PreparedTransaction(7, 3))
    '7:3'
    >>> PreparedTransaction.parse("7:3")
    PreparedTransaction(producer_id=7, producer_epoch=3)
    """

    producer_id: int
    producer_epoch: int

    def __str__(self) -> str:
        return f"{self.producer_id}:{self.producer_epoch}"

    @classmethod
    def parse(cls, text: str) -> PreparedTransaction:
        """Return the prepared transaction that `text` names. Raises `UsageError`."""
        match = re.fullmatch(r"(\d{1,19}):(\d{1,5})", text) if isinstance(text, str) else None
        if match is None:
            raise UsageError(f'a prepared transaction is named by text such as "7:3", not {text!r}')
        return cls(int(match[1]), int(match[2]))


class CommitSource(Protocol):
    """What a transaction can commit the position of: a batch that a consumer handed out."""

    @property
    def group_metadata(self) -> GroupMetadata:
        """The group, and the generation in which the batch was read."""
        ...

    @property
    def next_offsets(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """For each partition in the batch, the offset of the next record to read."""
        ...

    def begin(self) -> None:
        """A transaction over the batch begins. Raises `UsageError` if its records were handed out again."""
        ...

    def rewind(self) -> None:
        """The transaction came to nothing: the records are to be handed out again, if the batch is not tried again."""
        ...


def check_commits(commits: object) -> None:
    """Raise `UsageError` unless `commits` is None or has what `CommitSource` has."""
    needed = ("group_metadata", "next_offsets", "begin", "rewind")
    if commits is not None and not all(hasattr(commits, name) for name in needed):
        raise UsageError(
            f"transaction(commits=...) takes a batch of Consumer.batches(), not {type(commits).__name__}; to commit "
            "other offsets, call send_offsets() inside the transaction"
        )


def as_prepared(prepared: PreparedTransaction | str | None) -> PreparedTransaction | None:
    """Return a prepared transaction that may be given as its text. Raises `UsageError`."""
    if prepared is None or isinstance(prepared, PreparedTransaction):
        return prepared
    return PreparedTransaction.parse(prepared)


def was_already_committed(committed: bool | None) -> bool:
    """Return what a transaction says of its token. Raises `UsageError` where `committed` is None: not decided yet."""
    if committed is None:
        raise UsageError("whether its token was committed before is known once the transaction's block has ended")
    return not committed


class Transaction:
    """One transaction of a `Producer`: commits when its with-block ends, aborts when it raises.

        with producer.transaction(commits=batch) as txn:
            txn.send("enriched", key=key, value=value)

    An `AbortTransactionError` out of the block says that nothing of it took effect: run it again from its input.
    """

    def __init__(self, producer: Producer, commits: CommitSource | None, token: CommitToken | None = None) -> None:
        self._producer = producer
        self._commits = commits
        self._token = token
        self._committed: bool | None = None
        self._attached: AbstractContextManager[None] = nullcontext()
        self._used = False

    def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: HeadersArgument | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> Delivery:
        """Send a record inside the transaction. See `Producer.send`."""
        # Until `__enter__` and after `__exit__`; in between the producer's own method stands in this one's place.
        raise _outside()

    def send_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], group: GroupMetadata) -> None:
        """Commit `offsets` of a group with the transaction. See `Producer.send_offsets`."""
        if "send" not in self.__dict__:
            raise _outside()
        self._producer.send_offsets(offsets, group)

    def prepare(self) -> PreparedTransaction:
        """Flush, and leave the decision to somebody outside; the end of the block then commits. See `Producer`.

        When the block raises after this, the transaction stays prepared: the decision may have been taken.
        """
        if "send" not in self.__dict__:
            raise _outside()
        return self._producer.prepare_transaction(commits=self._commits)

    @property
    def already_committed(self) -> bool:
        """After the block: whether its token had been committed before, so that this transaction was aborted (T13).

        Raises `UsageError` as long as the block has not committed.
        """
        return was_already_committed(self._committed)

    def __enter__(self) -> Self:
        if self._used:
            raise UsageError("a Transaction is used once; call producer.transaction() for the next one")
        self._used = True
        if self._commits is not None:
            self._commits.begin()
        self._producer.begin_transaction()
        self._attached = tracing.attached(self._producer._core.transactional().context)
        self._attached.__enter__()
        # The compiled method itself, without a call of Python's in between: this is the hot path.
        self.__dict__["send"] = self._producer.send
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del self.__dict__["send"]
        self._attached.__exit__(None, None, None)
        if error is not None:
            self._abort_after(error)
        else:
            self._commit()

    def _commit(self) -> None:
        try:
            calls = self._producer._core.transactional()
            self._committed = self._producer._core.client.run(calls.commit(self._commits, self._token))
        except BaseException as error:
            self._abort_after(error)  # unless the commit was asked for already and may have happened
            raise

    def _abort_after(self, error: BaseException) -> None:
        """Abort. The caller gets what `error` says, unless it turns out that this instance can't continue at all."""
        calls = self._producer._core.transactions
        is_open = calls is not None and calls.is_open
        if self._commits is not None and (is_open or isinstance(error, AbortTransactionError)):
            self._commits.rewind()
        try:
            if is_open:
                self._producer.abort_transaction()
        except SemelError as while_aborting:
            if calls is not None and calls.has_stopped and isinstance(error, Exception):
                raise while_aborting from error
            error.add_note(f"and the transaction could not be aborted: {while_aborting}")


def _outside() -> UsageError:
    return UsageError(
        "this transaction is not open: send inside its with-block, `with producer.transaction() as txn: txn.send(...)`"
    )
