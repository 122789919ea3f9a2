from semel.protocol.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class QuotaEntity(_message.Message):
    __slots__ = ("user", "client_id", "ip")
    USER_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    IP_FIELD_NUMBER: _ClassVar[int]
    user: str
    client_id: str
    ip: str
    def __init__(self, user: _Optional[str] = ..., client_id: _Optional[str] = ..., ip: _Optional[str] = ...) -> None: ...

class AlterClientQuotasRequest(_message.Message):
    __slots__ = ("alterations", "validate_only")
    class Alteration(_message.Message):
        __slots__ = ("entity", "set", "remove")
        class SetEntry(_message.Message):
            __slots__ = ("key", "value")
            KEY_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            key: str
            value: float
            def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
        ENTITY_FIELD_NUMBER: _ClassVar[int]
        SET_FIELD_NUMBER: _ClassVar[int]
        REMOVE_FIELD_NUMBER: _ClassVar[int]
        entity: QuotaEntity
        set: _containers.ScalarMap[str, float]
        remove: _containers.RepeatedScalarFieldContainer[str]
        def __init__(self, entity: _Optional[_Union[QuotaEntity, _Mapping]] = ..., set: _Optional[_Mapping[str, float]] = ..., remove: _Optional[_Iterable[str]] = ...) -> None: ...
    ALTERATIONS_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    alterations: _containers.RepeatedCompositeFieldContainer[AlterClientQuotasRequest.Alteration]
    validate_only: bool
    def __init__(self, alterations: _Optional[_Iterable[_Union[AlterClientQuotasRequest.Alteration, _Mapping]]] = ..., validate_only: bool = ...) -> None: ...

class AlterClientQuotasResponse(_message.Message):
    __slots__ = ("results",)
    class Result(_message.Message):
        __slots__ = ("entity", "error")
        ENTITY_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        entity: QuotaEntity
        error: _common_pb2.Error
        def __init__(self, entity: _Optional[_Union[QuotaEntity, _Mapping]] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[AlterClientQuotasResponse.Result]
    def __init__(self, results: _Optional[_Iterable[_Union[AlterClientQuotasResponse.Result, _Mapping]]] = ...) -> None: ...

class DescribeClientQuotasRequest(_message.Message):
    __slots__ = ("matches", "strict")
    class Match(_message.Message):
        __slots__ = ("entity_type", "match", "name")
        ENTITY_TYPE_FIELD_NUMBER: _ClassVar[int]
        MATCH_FIELD_NUMBER: _ClassVar[int]
        NAME_FIELD_NUMBER: _ClassVar[int]
        entity_type: str
        match: int
        name: str
        def __init__(self, entity_type: _Optional[str] = ..., match: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...
    MATCHES_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    matches: _containers.RepeatedCompositeFieldContainer[DescribeClientQuotasRequest.Match]
    strict: bool
    def __init__(self, matches: _Optional[_Iterable[_Union[DescribeClientQuotasRequest.Match, _Mapping]]] = ..., strict: bool = ...) -> None: ...

class DescribeClientQuotasResponse(_message.Message):
    __slots__ = ("quotas",)
    class ClientQuota(_message.Message):
        __slots__ = ("entity", "values")
        class ValuesEntry(_message.Message):
            __slots__ = ("key", "value")
            KEY_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            key: str
            value: float
            def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
        ENTITY_FIELD_NUMBER: _ClassVar[int]
        VALUES_FIELD_NUMBER: _ClassVar[int]
        entity: QuotaEntity
        values: _containers.ScalarMap[str, float]
        def __init__(self, entity: _Optional[_Union[QuotaEntity, _Mapping]] = ..., values: _Optional[_Mapping[str, float]] = ...) -> None: ...
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    quotas: _containers.RepeatedCompositeFieldContainer[DescribeClientQuotasResponse.ClientQuota]
    def __init__(self, quotas: _Optional[_Iterable[_Union[DescribeClientQuotasResponse.ClientQuota, _Mapping]]] = ...) -> None: ...
