from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DelegationToken(_message.Message):
    __slots__ = ("token_id", "owner", "requester", "renewers", "issue_timestamp_ms", "expiry_timestamp_ms", "max_timestamp_ms")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    REQUESTER_FIELD_NUMBER: _ClassVar[int]
    RENEWERS_FIELD_NUMBER: _ClassVar[int]
    ISSUE_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRY_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    token_id: str
    owner: str
    requester: str
    renewers: _containers.RepeatedScalarFieldContainer[str]
    issue_timestamp_ms: int
    expiry_timestamp_ms: int
    max_timestamp_ms: int
    def __init__(self, token_id: _Optional[str] = ..., owner: _Optional[str] = ..., requester: _Optional[str] = ..., renewers: _Optional[_Iterable[str]] = ..., issue_timestamp_ms: _Optional[int] = ..., expiry_timestamp_ms: _Optional[int] = ..., max_timestamp_ms: _Optional[int] = ...) -> None: ...

class CreateDelegationTokenRequest(_message.Message):
    __slots__ = ("owner", "renewers", "max_lifetime_ms")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    RENEWERS_FIELD_NUMBER: _ClassVar[int]
    MAX_LIFETIME_MS_FIELD_NUMBER: _ClassVar[int]
    owner: str
    renewers: _containers.RepeatedScalarFieldContainer[str]
    max_lifetime_ms: int
    def __init__(self, owner: _Optional[str] = ..., renewers: _Optional[_Iterable[str]] = ..., max_lifetime_ms: _Optional[int] = ...) -> None: ...

class CreateDelegationTokenResponse(_message.Message):
    __slots__ = ("token", "hmac")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    HMAC_FIELD_NUMBER: _ClassVar[int]
    token: DelegationToken
    hmac: bytes
    def __init__(self, token: _Optional[_Union[DelegationToken, _Mapping]] = ..., hmac: _Optional[bytes] = ...) -> None: ...

class RenewDelegationTokenRequest(_message.Message):
    __slots__ = ("token_id", "renew_period_ms")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    RENEW_PERIOD_MS_FIELD_NUMBER: _ClassVar[int]
    token_id: str
    renew_period_ms: int
    def __init__(self, token_id: _Optional[str] = ..., renew_period_ms: _Optional[int] = ...) -> None: ...

class RenewDelegationTokenResponse(_message.Message):
    __slots__ = ("expiry_timestamp_ms",)
    EXPIRY_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    expiry_timestamp_ms: int
    def __init__(self, expiry_timestamp_ms: _Optional[int] = ...) -> None: ...

class ExpireDelegationTokenRequest(_message.Message):
    __slots__ = ("token_id", "expiry_period_ms")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    EXPIRY_PERIOD_MS_FIELD_NUMBER: _ClassVar[int]
    token_id: str
    expiry_period_ms: int
    def __init__(self, token_id: _Optional[str] = ..., expiry_period_ms: _Optional[int] = ...) -> None: ...

class ExpireDelegationTokenResponse(_message.Message):
    __slots__ = ("expiry_timestamp_ms",)
    EXPIRY_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    expiry_timestamp_ms: int
    def __init__(self, expiry_timestamp_ms: _Optional[int] = ...) -> None: ...

class DescribeDelegationTokensRequest(_message.Message):
    __slots__ = ("owners",)
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    owners: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, owners: _Optional[_Iterable[str]] = ...) -> None: ...

class DescribeDelegationTokensResponse(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[DelegationToken]
    def __init__(self, tokens: _Optional[_Iterable[_Union[DelegationToken, _Mapping]]] = ...) -> None: ...
