"""Where a node's configuration comes from: flags over environment over a TOML file over `NodeConfig`'s defaults."""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from semel.broker.config.delegation import check_delegation
from semel.broker.config.listeners import (
    GRPC,
    KAFKA,
    PROTOCOLS,
    ClientListener,
    check_listeners,
    client_listeners,
    listeners_of,
    parse_items,
)
from semel.broker.config.node_config import SETTINGS, NodeConfig, attribute_of, value_of
from semel.broker.config.permissions import check_permissions
from semel.broker.config.sasl import check_sasl
from semel.broker.config.tls import check_tls, names_by_certificates
from semel.broker.config.unsupported import INSTEAD
from semel.broker.config.wrong_addresses import why_wrong
from semel.protocol.schemes import SASL_PREFIX, TLS_PREFIX, asks_for_password, scheme_of, speaks_tls, without_scheme
from semel.runtime.setting import ConfigError, Setting, Value, did_you_mean

ENVIRONMENT_PREFIX: Final = "SEMEL_"
_FILE_SIZE_MAX: Final = 1 << 20


class Source(Enum):
    """Where a value came from, weakest first. The names are those of `ConfigEntry.source` in the gRPC API."""

    DEFAULT = 0
    FILE = 1
    ENVIRONMENT = 2
    FLAG = 3
    DYNAMIC_DEFAULT_BROKER = 4
    DYNAMIC_BROKER = 5
    DYNAMIC_TOPIC = 6


class Address(NamedTuple):
    """A host and a port to listen on or to be told."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration with the source of every value that is not a default.

    `layers` are what AlterConfigs put on top of the configuration that the node was started with, strongest first.
    `file` is the absolute path of the file that it was read from; empty for none.
    """

    config: NodeConfig
    sources: Mapping[str, Source]
    layers: Sequence[tuple[Source, Mapping[str, Value]]] = ()
    started_with: LoadedConfig | None = None
    file: str = ""

    def source(self, name: str) -> Source:
        return self.sources.get(name, Source.DEFAULT)

    def given(self, name: str) -> Iterator[tuple[Source, Value]]:
        """Yield every value that the setting `name` was given, strongest first, and its default last."""
        for source, values in self.layers:
            if name in values:
                yield source, values[name]
        static = self.started_with or self
        yield static.source(name), value_of(static.config, name)
        if static.source(name) is not Source.DEFAULT:
            yield Source.DEFAULT, SETTINGS[name].default


def environment_name(name: str) -> str:
    return ENVIRONMENT_PREFIX + attribute_of(name).upper()


def load_config(
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Sequence[tuple[str, str, object]] = (),
) -> LoadedConfig:
    """Read the configuration of a node.

    `flags` are (name of the flag as the user wrote it, setting, value). Without `file`, SEMEL_CONFIG may name one.
    Raises `ConfigError` for an unknown name (with the nearest right one), a wrong value, and values that contradict
    each other; the message says which file, variable or flag it was.
    """
    environment = os.environ if environment is None else environment
    if file is None and environment.get(_CONFIG_VARIABLE):
        file = Path(environment[_CONFIG_VARIABLE])
    values: dict[str, Value] = {}
    sources: dict[str, Source] = {}
    for source, entries in (
        (Source.FILE, _file_entries(file) if file is not None else ()),
        (Source.ENVIRONMENT, _environment_entries(environment)),
        (Source.FLAG, flags),
    ):
        for origin, name, text in entries:
            values[name] = _parse(origin, name, text)
            sources[name] = source
            if SETTINGS[name].only_dynamic:
                raise ConfigError(f"{origin}: {name} is set while the node runs, never at a start: leave it out")
    _let_stronger_listeners_win(values, sources)
    config = NodeConfig(**{attribute_of(name): value for name, value in values.items()})  # type: ignore[arg-type]
    check_config(config)
    return LoadedConfig(config, MappingProxyType(sources), file="" if file is None else str(file.absolute()))


def _let_stronger_listeners_win(values: dict[str, Value], sources: dict[str, Source]) -> None:
    """Where kafka.listen and kafka.listeners come from two sources, the stronger says where to listen.

    From one source both are a contradiction, which `check_listeners` finds.
    """
    for protocol in PROTOCOLS:
        several, single = f"{protocol}.listeners", f"{protocol}.listen"
        if not values.get(several):
            continue
        if values.get(single) == "":  # as where an image has set it, and somebody takes that back
            del values[single], sources[single]
        if single in values and sources[single].value > sources[several].value:
            del values[several], sources[several]
            continue
        for name in (single, f"{protocol}.advertised"):
            if name in values and sources[name].value < sources[several].value:
                del values[name], sources[name]


def with_dynamic(
    loaded: LoadedConfig, dynamic: Mapping[str, str], all_nodes: Mapping[str, str] = MappingProxyType({})
) -> LoadedConfig:
    """Return the configuration with the values that AlterConfigs gave this node, over those for all nodes, on top."""
    layers = [
        (source, {name: _parse("dynamic", name, text) for name, text in values.items()})
        for source, values in ((Source.DYNAMIC_BROKER, dynamic), (Source.DYNAMIC_DEFAULT_BROKER, all_nodes))
        if values
    ]
    if not layers:
        return loaded
    sources = dict(loaded.sources)
    changed: dict[str, Value] = {}
    for source, values in reversed(layers):
        changed |= {attribute_of(name): value for name, value in values.items()}
        sources |= dict.fromkeys(values, source)
    config = dataclasses.replace(loaded.config, **changed)  # type: ignore[arg-type]
    check_config(config)
    return LoadedConfig(config, MappingProxyType(sources), layers, loaded, loaded.file)


def check_config(config: NodeConfig) -> None:
    """Check addresses, and what the parts do not check themselves. Raises `ConfigError`."""
    for name in _ADDRESSES:
        _check_address(name, str(value_of(config, name)))
    check_listeners(config, listen_address, _check_advertised_item)
    if not config.data_dir:
        raise ConfigError("data.dir is empty: name the directory in which the node keeps its data")
    if not config.log_cleanup_policy:
        raise ConfigError("log.cleanup.policy is empty: use delete, compact, or both")
    listeners = client_listeners(config)
    clients = {each.setting: each.listen for each in listeners}
    metrics = {"metrics.listen": config.metrics_listen}
    check_tls(config, listeners, {**metrics, "peer.listen": config.peer_listen})
    check_sasl(config, {**clients, **metrics})
    check_delegation(config, list(clients.values()))
    by_certificates = names_by_certificates(config, listeners)
    check_permissions(config, asks_for_certificates=by_certificates)


def _check_address(name: str, text: str) -> None:
    advertised = name.endswith(".advertised")
    if text or name not in _MAY_BE_EMPTY:
        address = parse_address(name, text)
        if advertised and address.port == 0:
            raise ConfigError(f"{name} = {text}: port 0 cannot be advertised; leave it empty to tell the real one")


def _check_advertised_item(listener: ClientListener) -> None:
    if listener.advertised and advertised_address(listener).port == 0:
        raise ConfigError(
            f"{listener.advertised_setting}{listener.advertised}: port 0 cannot be advertised; leave ?advertised= out "
            "to tell the real one"
        )


def parse_address(name: str, text: str) -> Address:
    """Return host and port of `HOST:PORT` or `[HOST]:PORT`, with a scheme before it that the listener can have.

    Raises `ConfigError`.
    """
    for has_it, may, scheme in (
        (asks_for_password(text), _MAY_ASK_FOR_PASSWORDS, SASL_PREFIX),
        (speaks_tls(text), _MAY_ENCRYPT, TLS_PREFIX),
    ):
        if has_it and name not in may:
            raise ConfigError(f"{name} = {text}: only {', '.join(may)} can have {scheme}")
    return _host_and_port(f"{name} = {text}", text)


def listen_address(listener: ClientListener) -> Address:
    """Return host and port that a listener for clients listens on. Raises `ConfigError`."""
    return _host_and_port(f"{listener.setting} = {listener.listen}", listener.listen)


def advertised_address(listener: ClientListener) -> Address:
    """Return host and port that a listener for clients advertises. Raises `ConfigError`."""
    if not listener.is_named:
        return parse_address(listener.advertised_setting, listener.advertised)
    shown = f"{listener.advertised_setting}{listener.advertised}"
    if scheme_of(listener.advertised):
        raise ConfigError(
            f"{shown}: an advertised address has no scheme, write ?advertised={without_scheme(listener.advertised)}"
        )
    return _host_and_port(shown, listener.advertised)


def _host_and_port(shown: str, text: str) -> Address:
    """Return host and port of an address, which messages call `shown`."""
    found = _ADDRESS.fullmatch(without_scheme(text))
    if found is None or int(found["port"]) > 65_535 or not _NO_HOST.isdisjoint(found["host"] or ""):
        raise ConfigError(f"{shown} is not HOST:PORT: {why_wrong(text)}")
    return Address(found["bracketed"] or found["host"], int(found["port"]))


_FLAGS: Final = {
    "kafka.listen": "--kafka",
    "grpc.listen": "--grpc",
    "peer.listen": "peer.listen",
    "metrics.listen": "--metrics",
}


def check_ports_differ(config: NodeConfig, names: Iterable[str]) -> None:
    """Raise `ConfigError` where two listeners have one address: each would take the other's clients.

    names: which are looked at: kafka.listen for all listeners of that protocol, and so on
    """
    addresses: list[tuple[str, str, Address]] = []
    for name in names:
        if name in _LISTS:
            listeners = listeners_of(config, _LISTS[name])
            addresses += [(each.setting, _FLAGS[name], listen_address(each)) for each in listeners]
        elif text := str(value_of(config, name)):
            addresses.append((name, _FLAGS[name], parse_address(name, text)))
    for (name, flag, one), (other_name, other_flag, other) in combinations(addresses, 2):
        if one.port == other.port != 0 and _share_an_address(one.host, other.host):
            change = flag if flag == other_flag else f"{flag} or {other_flag}"
            raise ConfigError(
                f"{name} = {one} and {other_name} = {other} have the same port, and each needs one of its own: change "
                f"{change}"
            )


def _share_an_address(host: str, other: str) -> bool:
    if host == other or "::" in (host, other):
        return True
    if "0.0.0.0" in (host, other):  # noqa: S104 (compared with, not listened on)
        return ":" not in host + other
    return {host, other} in ({"localhost", "127.0.0.1"}, {"localhost", "::1"})


def find_setting(name: str, settings: Mapping[str, Setting] = SETTINGS) -> Setting:
    """Return a setting by name. Raises `ConfigError` naming the nearest right one."""
    found = settings.get(name)
    if found is None:
        raise unknown_setting(name, settings)
    return found


def unknown_setting(name: str, settings: Mapping[str, Setting]) -> ConfigError:
    """Return the error that says what there is in place of `name`: of a setting of Kafka's, or of a misspelt one."""
    if name.startswith(_OF_A_LISTENER):
        return ConfigError(
            f"there is no setting {name[:200]}, unlike in Kafka: what is of one listener stands behind its address in "
            "kafka.listeners, as external=tls://0.0.0.0:9093?ssl.certificate.location=FILE&ssl.key.location=FILE"
        )
    if name in INSTEAD:
        return ConfigError(f"there is no setting {name}, unlike in Kafka: {INSTEAD[name]}")
    return ConfigError(f"there is no setting {name[:200]}{did_you_mean(name[:200], settings)}")


_ADDRESSES: Final = (
    "kafka.listen",
    "kafka.advertised",
    "grpc.listen",
    "grpc.advertised",
    "peer.listen",
    "peer.advertised",
    "metrics.listen",
)
_LISTS: Final = {"kafka.listen": KAFKA, "grpc.listen": GRPC}
"""The settings of one listener each, with the protocol of which there may be several."""
_MAY_ENCRYPT: Final = ("kafka.listen", "grpc.listen", "peer.listen", "metrics.listen")
_MAY_ASK_FOR_PASSWORDS: Final = ("kafka.listen", "grpc.listen", "metrics.listen")
_MAY_BE_EMPTY: Final = frozenset({*_ADDRESSES} - {"kafka.listen", "grpc.listen"})

_CONFIG_VARIABLE: Final = "SEMEL_CONFIG"
_OF_A_LISTENER: Final = "listener.name."
_NO_HOST: Final = frozenset("*@,")
_ADDRESS: Final = re.compile(r"(?:\[(?P<bracketed>[0-9A-Fa-f:.%]+)\]|(?P<host>[^\s:\[\]/]+)):(?P<port>[0-9]{1,5})")
_OTHER_VARIABLES: Final = frozenset({_CONFIG_VARIABLE, "SEMEL_BOOTSTRAP", "SEMEL_INTERPRETED", "SEMEL_TRACEBACK"})
_SERVICE_LINKS: Final = re.compile(r"SEMEL(_\w+)?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP)(_\w+)?)?)")
"""Variables that Kubernetes and Docker links set for a service whose name begins with `semel`: not settings."""

_Entry = tuple[str, str, object]


def _parse(origin: str, name: str, text: object) -> Value:
    try:
        value = find_setting(name).parse(text)
        if name in _ADDRESSES and (value or name not in _LISTS):  # these may be empty beside several listeners
            _check_address(name, str(value))
        if isinstance(value, tuple) and name.removesuffix(".listeners") in PROTOCOLS:
            for listener in parse_items(name, value):
                listen_address(listener)
                _check_advertised_item(listener)
        return value
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error.message}") from None


def _file_entries(file: Path) -> Iterable[_Entry]:
    try:
        with file.open("rb") as stream:
            data = stream.read(_FILE_SIZE_MAX + 1)
    except OSError as error:
        raise ConfigError(f"the configuration file {file} can't be read: {error.strerror}") from None
    if len(data) > _FILE_SIZE_MAX:
        raise ConfigError(f"the configuration file {file} has more than {_FILE_SIZE_MAX} bytes")
    try:
        tables = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"the configuration file {file} is not TOML: {error}") from None
    return [(str(file), name, value) for name, value in _flatten("", tables)]


def _flatten(prefix: str, table: Mapping[str, Any]) -> Iterable[tuple[str, object]]:
    """`log.retention.ms = 1`, `"log.retention.ms" = 1` and `[log.retention]` with `ms = 1` all mean the same."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(f"{prefix}{key}.", value)
        else:
            yield prefix + key, value


def _environment_entries(environment: Mapping[str, str]) -> Iterable[_Entry]:
    names = {environment_name(name): name for name in SETTINGS}
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in _OTHER_VARIABLES:
            continue
        name = names.get(variable)
        if name is None:
            if _SERVICE_LINKS.fullmatch(variable):
                continue
            raise ConfigError(f"environment: {variable} is not a setting{did_you_mean(variable, names)}")
        yield f"environment variable {variable}", name, text
