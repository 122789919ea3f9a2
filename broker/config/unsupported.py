"""Settings of Kafka's that are not here, each with what there is in its place, for users who come from Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_QUOTA_WINDOW: Final = "two seconds' worth may be taken at once after a quiet time, and no more"
_NO_DISABLE: Final = "what is in the remote storage stays there: raise local.retention.ms to have it on the disk, too"
_LEVEL: Final = "codecs are used at their default level"
_FLUSH: Final = "the node's durability says what an acknowledgement promises"

INSTEAD: Final[Mapping[str, str]] = MappingProxyType(
    {
        # Of topics.
        "compression.gzip.level": _LEVEL,
        "compression.lz4.level": _LEVEL,
        "compression.zstd.level": _LEVEL,
        "flush.messages": _FLUSH,
        "flush.ms": _FLUSH,
        "message.downconversion.enable": "batches are sent in the one format there is, as by Kafka 4",
        "message.format.version": "batches are kept in the one format there is, as by Kafka 4",
        "message.timestamp.difference.max.ms": (
            "use message.timestamp.before.max.ms and message.timestamp.after.max.ms, as with Kafka 4"
        ),
        "preallocate": "segments grow as they are written",
        "remote.log.copy.disable": _NO_DISABLE,
        "remote.log.delete.on.disable": _NO_DISABLE,
        "remote.log.manager.copy.quota.window.num": _QUOTA_WINDOW,
        "remote.log.manager.copy.quota.window.size.seconds": _QUOTA_WINDOW,
        "remote.log.manager.fetch.quota.window.num": _QUOTA_WINDOW,
        "remote.log.manager.fetch.quota.window.size.seconds": _QUOTA_WINDOW,
        "remote.log.storage.system.enable": "use remote.storage.url",
        "remote.log.storage.manager.class.name": "use remote.storage.url",
        "segment.jitter.ms": "segments are begun when segment.ms is over",
        "unclean.leader.election.enable": (
            "a replica that lacks records is elected by an operator's word alone: kafka-leader-election.sh "
            "--election-type unclean"
        ),
        # Of nodes.
        "advertised.listeners": "use kafka.advertised, or ?advertised= behind an address of kafka.listeners",
        "broker.id": "use node.id",
        "listeners": "use kafka.listen, or kafka.listeners for several",
        "log.dir": "use data.dir",
        "log.dirs": "use data.dir: a node has one directory",
        "log.flush.interval.messages": _FLUSH,
        "max.connections.per.ip": "use kafka.max.connections.per.ip",
        "max.connections.per.ip.overrides": "use kafka.max.connections.overrides",
        "log.retention.hours": "use log.retention.ms",
        "log.retention.minutes": "use log.retention.ms",
        "log.roll.hours": "use log.roll.ms",
        "listener.security.protocol.map": "write tls:// before the address of kafka.listen",
        "ssl.enabled.protocols": "TLS 1.2 and 1.3 are spoken",
        "ssl.key.password": "ssl.key.location holds a key that is not encrypted",
        "ssl.keystore.certificate.chain": "use ssl.certificate.location, a PEM file",
        "ssl.keystore.key": "use ssl.key.location, a PEM file",
        "ssl.keystore.location": "use ssl.certificate.location and ssl.key.location, PEM files",
        "ssl.keystore.password": "ssl.key.location holds a key that is not encrypted",
        "ssl.keystore.type": "certificates and keys are PEM files",
        "ssl.protocol": "TLS 1.2 and 1.3 are spoken",
        "ssl.truststore.certificates": "use ssl.ca.location, a PEM file",
        "ssl.truststore.location": "use ssl.ca.location, a PEM file",
        "ssl.truststore.type": "certificates and keys are PEM files",
        "replica.alter.log.dirs.io.max.bytes.per.second": "a node has one directory",
    }
)
