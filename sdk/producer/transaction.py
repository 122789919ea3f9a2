"""What a transaction is committed with: a token, the name of what is prepared, a consumer's offsets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from semel.protocol.api.commit_decisions import NAME_BYTES_MAX
from semel.protocol.errors import AbortTransactionError, UsageError
from semel.protocol.int_bounds import INT64_MAX
from semel.sdk.transport.arguments import check_payload
from semel.sdk.transport.options import check_int, check_name

if TYPE_CHECKING:
    from semel.protocol.api.group_offsets import GroupMetadata, OffsetAndMetadata
    from semel.protocol.errors import RetriableError
    from semel.protocol.ids import TopicPartition


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
        whole = None if sequence is None else check_int("sequence", sequence, 0, INT64_MAX)
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


def nothing_took_effect(error: RetriableError) -> AbortTransactionError:
    """Return what a block raises whose transaction was aborted because a call inside it got no answer in time."""
    return AbortTransactionError(
        f"the transaction was aborted, run it again from its input: {error.message}", error.code
    )


class CommitSource(Protocol):
    """What a transaction can commit the position of: a batch that a consumer returned."""

    @property
    def group_metadata(self) -> GroupMetadata:
        """The group, and the generation in which the batch was read."""
        ...

    @property
    def next_offsets(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """For each partition in the batch, the offset of the next record to read."""
        ...

    def begin(self) -> None:
        """A transaction over the batch begins. Raises `UsageError` if its records were returned again."""
        ...

    def rewind(self) -> None:
        """The transaction came to nothing: the records are to be returned again, if the batch is not tried again."""
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
