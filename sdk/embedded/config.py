"""The configuration of a node in the caller's process: what the caller says, and nothing of its environment."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from semel.broker.config.node_config import SETTINGS
from semel.broker.config.sources import LoadedConfig, load_config, parse_address
from semel.broker.node import Listener
from semel.broker.open_files import open_files_limit
from semel.protocol.errors import UsageError
from semel.protocol.schemes import with_scheme_of
from semel.runtime.setting import ConfigError

_GIVEN_ELSEWHERE: Final = {
    "data.dir": "it is the first argument of open()",
    "kafka.listen": 'give it as open(..., kafka="HOST:PORT")',
    "grpc.listen": 'give it as open(..., grpc="HOST:PORT")',
    "kafka.listeners": 'a log in a program has one listener for Kafka\'s clients: open(..., kafka="HOST:PORT")',
    "grpc.listeners": 'a log in a program has one listener for gRPC: open(..., grpc="HOST:PORT")',
    "log.level": "the node writes to Python's logging: set the level of the logger semel there",
    "log.format": "the node writes to Python's logging: choose a formatter there",
}
_OPEN_FILES: Final = "log.max.open.files"


def embedded_config(
    path: str, settings: Mapping[str, object] | None, grpc: str | None, kafka: str | None
) -> tuple[LoadedConfig, Collection[Listener]]:
    """Return the configuration, and the listeners to start. Raises `ConfigError`, and `UsageError` for wrong types.

    SEMEL_... variables and files are not looked at: they are for a process that is a node.
    """
    if settings is not None and not isinstance(settings, Mapping):
        raise UsageError(f'settings takes a mapping such as {{"log.retention.ms": 86_400_000}}, not {settings!r}')
    flags: list[tuple[str, str, object]] = [("open(path)", "data.dir", path)]
    listeners = {Listener.IN_PROCESS, Listener.PEERS}
    for name, value in (settings or {}).items():
        if not isinstance(name, str):
            raise UsageError(f"the name of a setting is text, not {name!r}")
        if name in _GIVEN_ELSEWHERE:
            raise ConfigError(f"open(settings=...) has no {name}: {_GIVEN_ELSEWHERE[name]}")
        flags.append((f"open(settings=...), {name}", name, value))
    if grpc is not None:
        address = parse_address("grpc.listen", _text("grpc", grpc))
        flags.append(("open(grpc=...)", "grpc.listen", grpc))
        listeners.add(Listener.GRPC)
        if kafka is None:  # records travel there, those of gRPC's clients too
            kafka = with_scheme_of(grpc, address._replace(port=0))
    if kafka is not None:
        flags.append(("open(kafka=...)", "kafka.listen", _text("kafka", kafka)))
        listeners.add(Listener.KAFKA)
    if _OPEN_FILES not in (settings or {}):
        # The program has files of its own: a node takes at most half of what the system allows.
        default = SETTINGS[_OPEN_FILES].default
        assert isinstance(default, int)
        flags.append(("the limit of open files", _OPEN_FILES, min(default, open_files_limit() // 2)))
    return load_config(environment={}, flags=flags), listeners


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise UsageError(f'{name} is text such as "127.0.0.1:0", not {type(value).__name__} {value!r}')
    return value
