from semel.protocol.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ScramVerifier(_message.Message):
    __slots__ = ("mechanism", "iterations", "salt", "stored_key", "server_key")
    MECHANISM_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    STORED_KEY_FIELD_NUMBER: _ClassVar[int]
    SERVER_KEY_FIELD_NUMBER: _ClassVar[int]
    mechanism: int
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes
    def __init__(self, mechanism: _Optional[int] = ..., iterations: _Optional[int] = ..., salt: _Optional[bytes] = ..., stored_key: _Optional[bytes] = ..., server_key: _Optional[bytes] = ...) -> None: ...

class AlterUserCredentialsRequest(_message.Message):
    __slots__ = ("passwords", "removed")
    class Password(_message.Message):
        __slots__ = ("user", "verifiers")
        USER_FIELD_NUMBER: _ClassVar[int]
        VERIFIERS_FIELD_NUMBER: _ClassVar[int]
        user: str
        verifiers: _containers.RepeatedCompositeFieldContainer[ScramVerifier]
        def __init__(self, user: _Optional[str] = ..., verifiers: _Optional[_Iterable[_Union[ScramVerifier, _Mapping]]] = ...) -> None: ...
    PASSWORDS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    passwords: _containers.RepeatedCompositeFieldContainer[AlterUserCredentialsRequest.Password]
    removed: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, passwords: _Optional[_Iterable[_Union[AlterUserCredentialsRequest.Password, _Mapping]]] = ..., removed: _Optional[_Iterable[str]] = ...) -> None: ...

class AlterUserCredentialsResponse(_message.Message):
    __slots__ = ("results",)
    class Result(_message.Message):
        __slots__ = ("user", "error")
        USER_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        user: str
        error: _common_pb2.Error
        def __init__(self, user: _Optional[str] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[AlterUserCredentialsResponse.Result]
    def __init__(self, results: _Optional[_Iterable[_Union[AlterUserCredentialsResponse.Result, _Mapping]]] = ...) -> None: ...

class DescribeUserCredentialsRequest(_message.Message):
    __slots__ = ("users",)
    USERS_FIELD_NUMBER: _ClassVar[int]
    users: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, users: _Optional[_Iterable[str]] = ...) -> None: ...

class DescribeUserCredentialsResponse(_message.Message):
    __slots__ = ("users",)
    class Credential(_message.Message):
        __slots__ = ("mechanism", "iterations")
        MECHANISM_FIELD_NUMBER: _ClassVar[int]
        ITERATIONS_FIELD_NUMBER: _ClassVar[int]
        mechanism: int
        iterations: int
        def __init__(self, mechanism: _Optional[int] = ..., iterations: _Optional[int] = ...) -> None: ...
    class User(_message.Message):
        __slots__ = ("user", "error", "credentials")
        USER_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        CREDENTIALS_FIELD_NUMBER: _ClassVar[int]
        user: str
        error: _common_pb2.Error
        credentials: _containers.RepeatedCompositeFieldContainer[DescribeUserCredentialsResponse.Credential]
        def __init__(self, user: _Optional[str] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., credentials: _Optional[_Iterable[_Union[DescribeUserCredentialsResponse.Credential, _Mapping]]] = ...) -> None: ...
    USERS_FIELD_NUMBER: _ClassVar[int]
    users: _containers.RepeatedCompositeFieldContainer[DescribeUserCredentialsResponse.User]
    def __init__(self, users: _Optional[_Iterable[_Union[DescribeUserCredentialsResponse.User, _Mapping]]] = ...) -> None: ...
