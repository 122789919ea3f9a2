from semel.protocol.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CommitDecision(_message.Message):
    __slots__ = ("token", "sequence", "payload", "attempt", "decided_ms", "writers")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DECIDED_MS_FIELD_NUMBER: _ClassVar[int]
    WRITERS_FIELD_NUMBER: _ClassVar[int]
    token: str
    sequence: int
    payload: bytes
    attempt: str
    decided_ms: int
    writers: int
    def __init__(self, token: _Optional[str] = ..., sequence: _Optional[int] = ..., payload: _Optional[bytes] = ..., attempt: _Optional[str] = ..., decided_ms: _Optional[int] = ..., writers: _Optional[int] = ...) -> None: ...

class OpenSharedTransactionRequest(_message.Message):
    __slots__ = ("key", "attempt", "token", "sequence", "timeout_ms", "writer", "one_off", "run")
    KEY_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    ONE_OFF_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    key: str
    attempt: str
    token: str
    sequence: int
    timeout_ms: int
    writer: bool
    one_off: bool
    run: str
    def __init__(self, key: _Optional[str] = ..., attempt: _Optional[str] = ..., token: _Optional[str] = ..., sequence: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., writer: bool = ..., one_off: bool = ..., run: _Optional[str] = ...) -> None: ...

class OpenSharedTransactionResponse(_message.Message):
    __slots__ = ("transactional_id", "producer", "committed")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    producer: _common_pb2.Producer
    committed: CommitDecision
    def __init__(self, transactional_id: _Optional[str] = ..., producer: _Optional[_Union[_common_pb2.Producer, _Mapping]] = ..., committed: _Optional[_Union[CommitDecision, _Mapping]] = ...) -> None: ...

class CommitSharedTransactionRequest(_message.Message):
    __slots__ = ("key", "attempt", "token", "sequence", "writers", "payload", "one_off", "run")
    KEY_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    WRITERS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    ONE_OFF_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    key: str
    attempt: str
    token: str
    sequence: int
    writers: _containers.RepeatedCompositeFieldContainer[_common_pb2.Producer]
    payload: bytes
    one_off: bool
    run: str
    def __init__(self, key: _Optional[str] = ..., attempt: _Optional[str] = ..., token: _Optional[str] = ..., sequence: _Optional[int] = ..., writers: _Optional[_Iterable[_Union[_common_pb2.Producer, _Mapping]]] = ..., payload: _Optional[bytes] = ..., one_off: bool = ..., run: _Optional[str] = ...) -> None: ...

class CommitSharedTransactionResponse(_message.Message):
    __slots__ = ("decision", "already_committed")
    DECISION_FIELD_NUMBER: _ClassVar[int]
    ALREADY_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    decision: CommitDecision
    already_committed: bool
    def __init__(self, decision: _Optional[_Union[CommitDecision, _Mapping]] = ..., already_committed: bool = ...) -> None: ...

class AbortSharedTransactionRequest(_message.Message):
    __slots__ = ("key", "attempt", "one_off")
    KEY_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ONE_OFF_FIELD_NUMBER: _ClassVar[int]
    key: str
    attempt: str
    one_off: bool
    def __init__(self, key: _Optional[str] = ..., attempt: _Optional[str] = ..., one_off: bool = ...) -> None: ...

class AbortSharedTransactionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LeaveSharedTransactionRequest(_message.Message):
    __slots__ = ("key", "attempt", "producer")
    KEY_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    key: str
    attempt: str
    producer: _common_pb2.Producer
    def __init__(self, key: _Optional[str] = ..., attempt: _Optional[str] = ..., producer: _Optional[_Union[_common_pb2.Producer, _Mapping]] = ...) -> None: ...

class LeaveSharedTransactionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeSharedTransactionRequest(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: str
    def __init__(self, key: _Optional[str] = ...) -> None: ...

class ListSharedTransactionsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSharedTransactionsResponse(_message.Message):
    __slots__ = ("items", "unreadable")
    class Item(_message.Message):
        __slots__ = ("key", "open_token", "last_token", "last_commit_ms")
        KEY_FIELD_NUMBER: _ClassVar[int]
        OPEN_TOKEN_FIELD_NUMBER: _ClassVar[int]
        LAST_TOKEN_FIELD_NUMBER: _ClassVar[int]
        LAST_COMMIT_MS_FIELD_NUMBER: _ClassVar[int]
        key: str
        open_token: str
        last_token: str
        last_commit_ms: int
        def __init__(self, key: _Optional[str] = ..., open_token: _Optional[str] = ..., last_token: _Optional[str] = ..., last_commit_ms: _Optional[int] = ...) -> None: ...
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[ListSharedTransactionsResponse.Item]
    unreadable: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, items: _Optional[_Iterable[_Union[ListSharedTransactionsResponse.Item, _Mapping]]] = ..., unreadable: _Optional[_Iterable[str]] = ...) -> None: ...

class SharedTransactionDescription(_message.Message):
    __slots__ = ("key", "attempt", "token", "sequence", "writers", "decisions")
    class Writer(_message.Message):
        __slots__ = ("transactional_id", "producer", "state", "start_time_ms")
        TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
        PRODUCER_FIELD_NUMBER: _ClassVar[int]
        STATE_FIELD_NUMBER: _ClassVar[int]
        START_TIME_MS_FIELD_NUMBER: _ClassVar[int]
        transactional_id: str
        producer: _common_pb2.Producer
        state: str
        start_time_ms: int
        def __init__(self, transactional_id: _Optional[str] = ..., producer: _Optional[_Union[_common_pb2.Producer, _Mapping]] = ..., state: _Optional[str] = ..., start_time_ms: _Optional[int] = ...) -> None: ...
    KEY_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    WRITERS_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    key: str
    attempt: str
    token: str
    sequence: int
    writers: _containers.RepeatedCompositeFieldContainer[SharedTransactionDescription.Writer]
    decisions: _containers.RepeatedCompositeFieldContainer[CommitDecision]
    def __init__(self, key: _Optional[str] = ..., attempt: _Optional[str] = ..., token: _Optional[str] = ..., sequence: _Optional[int] = ..., writers: _Optional[_Iterable[_Union[SharedTransactionDescription.Writer, _Mapping]]] = ..., decisions: _Optional[_Iterable[_Union[CommitDecision, _Mapping]]] = ...) -> None: ...
