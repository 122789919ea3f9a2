from semel.protocol.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class InitProducerIdRequest(_message.Message):
    __slots__ = ("transactional_id", "transaction_timeout_ms", "producer", "two_phase", "keep_prepared")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    TWO_PHASE_FIELD_NUMBER: _ClassVar[int]
    KEEP_PREPARED_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    transaction_timeout_ms: int
    producer: _common_pb2.Producer
    two_phase: bool
    keep_prepared: bool
    def __init__(self, transactional_id: _Optional[str] = ..., transaction_timeout_ms: _Optional[int] = ..., producer: _Optional[_Union[_common_pb2.Producer, _Mapping]] = ..., two_phase: bool = ..., keep_prepared: bool = ...) -> None: ...

class InitProducerIdResponse(_message.Message):
    __slots__ = ("producer", "ongoing")
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    ONGOING_FIELD_NUMBER: _ClassVar[int]
    producer: _common_pb2.Producer
    ongoing: _common_pb2.Producer
    def __init__(self, producer: _Optional[_Union[_common_pb2.Producer, _Mapping]] = ..., ongoing: _Optional[_Union[_common_pb2.Producer, _Mapping]] = ...) -> None: ...

class AddPartitionsRequest(_message.Message):
    __slots__ = ("transactional_id", "producer", "topics")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    producer: _common_pb2.Producer
    topics: _containers.RepeatedCompositeFieldContainer[_common_pb2.TopicPartitions]
    def __init__(self, transactional_id: _Optional[str] = ..., producer: _Optional[_Union[_common_pb2.Producer, _Mapping]] = ..., topics: _Optional[_Iterable[_Union[_common_pb2.TopicPartitions, _Mapping]]] = ...) -> None: ...

class AddPartitionsResponse(_message.Message):
    __slots__ = ("items",)
    class Item(_message.Message):
        __slots__ = ("topic", "partition", "error")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        PARTITION_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        topic: str
        partition: int
        error: _common_pb2.Error
        def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[AddPartitionsResponse.Item]
    def __init__(self, items: _Optional[_Iterable[_Union[AddPartitionsResponse.Item, _Mapping]]] = ...) -> None: ...

class TxnCommitOffsetsRequest(_message.Message):
    __slots__ = ("transactional_id", "producer", "group_id", "generation_id", "member_id", "group_instance_id", "items")
    class Item(_message.Message):
        __slots__ = ("topic", "partition", "offset", "leader_epoch", "metadata", "expected_offset")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        PARTITION_FIELD_NUMBER: _ClassVar[int]
        OFFSET_FIELD_NUMBER: _ClassVar[int]
        LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
        METADATA_FIELD_NUMBER: _ClassVar[int]
        EXPECTED_OFFSET_FIELD_NUMBER: _ClassVar[int]
        topic: str
        partition: int
        offset: int
        leader_epoch: int
        metadata: str
        expected_offset: int
        def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., metadata: _Optional[str] = ..., expected_offset: _Optional[int] = ...) -> None: ...
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    producer: _common_pb2.Producer
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str
    items: _containers.RepeatedCompositeFieldContainer[TxnCommitOffsetsRequest.Item]
    def __init__(self, transactional_id: _Optional[str] = ..., producer: _Optional[_Union[_common_pb2.Producer, _Mapping]] = ..., group_id: _Optional[str] = ..., generation_id: _Optional[int] = ..., member_id: _Optional[str] = ..., group_instance_id: _Optional[str] = ..., items: _Optional[_Iterable[_Union[TxnCommitOffsetsRequest.Item, _Mapping]]] = ...) -> None: ...

class TxnCommitOffsetsResponse(_message.Message):
    __slots__ = ("items",)
    class Item(_message.Message):
        __slots__ = ("topic", "partition", "error")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        PARTITION_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        topic: str
        partition: int
        error: _common_pb2.Error
        def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[TxnCommitOffsetsResponse.Item]
    def __init__(self, items: _Optional[_Iterable[_Union[TxnCommitOffsetsResponse.Item, _Mapping]]] = ...) -> None: ...

class EndTransactionRequest(_message.Message):
    __slots__ = ("transactional_id", "producer", "commit", "token", "payload", "sequence")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    producer: _common_pb2.Producer
    commit: bool
    token: str
    payload: bytes
    sequence: int
    def __init__(self, transactional_id: _Optional[str] = ..., producer: _Optional[_Union[_common_pb2.Producer, _Mapping]] = ..., commit: bool = ..., token: _Optional[str] = ..., payload: _Optional[bytes] = ..., sequence: _Optional[int] = ...) -> None: ...

class EndTransactionResponse(_message.Message):
    __slots__ = ("producer", "already_committed")
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    ALREADY_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    producer: _common_pb2.Producer
    already_committed: bool
    def __init__(self, producer: _Optional[_Union[_common_pb2.Producer, _Mapping]] = ..., already_committed: bool = ...) -> None: ...

class ListTransactionsRequest(_message.Message):
    __slots__ = ("states", "producer_ids", "min_duration_ms", "transactional_id_pattern")
    STATES_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_IDS_FIELD_NUMBER: _ClassVar[int]
    MIN_DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONAL_ID_PATTERN_FIELD_NUMBER: _ClassVar[int]
    states: _containers.RepeatedScalarFieldContainer[str]
    producer_ids: _containers.RepeatedScalarFieldContainer[int]
    min_duration_ms: int
    transactional_id_pattern: str
    def __init__(self, states: _Optional[_Iterable[str]] = ..., producer_ids: _Optional[_Iterable[int]] = ..., min_duration_ms: _Optional[int] = ..., transactional_id_pattern: _Optional[str] = ...) -> None: ...

class ListTransactionsResponse(_message.Message):
    __slots__ = ("items", "unknown_states", "unreadable")
    class Item(_message.Message):
        __slots__ = ("transactional_id", "producer_id", "state", "last_token", "last_commit_ms")
        TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
        PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
        STATE_FIELD_NUMBER: _ClassVar[int]
        LAST_TOKEN_FIELD_NUMBER: _ClassVar[int]
        LAST_COMMIT_MS_FIELD_NUMBER: _ClassVar[int]
        transactional_id: str
        producer_id: int
        state: str
        last_token: str
        last_commit_ms: int
        def __init__(self, transactional_id: _Optional[str] = ..., producer_id: _Optional[int] = ..., state: _Optional[str] = ..., last_token: _Optional[str] = ..., last_commit_ms: _Optional[int] = ...) -> None: ...
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_STATES_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[ListTransactionsResponse.Item]
    unknown_states: _containers.RepeatedScalarFieldContainer[str]
    unreadable: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, items: _Optional[_Iterable[_Union[ListTransactionsResponse.Item, _Mapping]]] = ..., unknown_states: _Optional[_Iterable[str]] = ..., unreadable: _Optional[_Iterable[str]] = ...) -> None: ...

class DescribeTransactionRequest(_message.Message):
    __slots__ = ("transactional_id",)
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    def __init__(self, transactional_id: _Optional[str] = ...) -> None: ...

class TransactionDescription(_message.Message):
    __slots__ = ("transactional_id", "state", "producer", "timeout_ms", "start_time_ms", "last_update_ms", "coordinator_epoch", "topics")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    START_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_UPDATE_MS_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    state: str
    producer: _common_pb2.Producer
    timeout_ms: int
    start_time_ms: int
    last_update_ms: int
    coordinator_epoch: int
    topics: _containers.RepeatedCompositeFieldContainer[_common_pb2.TopicPartitions]
    def __init__(self, transactional_id: _Optional[str] = ..., state: _Optional[str] = ..., producer: _Optional[_Union[_common_pb2.Producer, _Mapping]] = ..., timeout_ms: _Optional[int] = ..., start_time_ms: _Optional[int] = ..., last_update_ms: _Optional[int] = ..., coordinator_epoch: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[_common_pb2.TopicPartitions, _Mapping]]] = ...) -> None: ...

class AbortTransactionRequest(_message.Message):
    __slots__ = ("transactional_id",)
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    def __init__(self, transactional_id: _Optional[str] = ...) -> None: ...

class AbortTransactionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
