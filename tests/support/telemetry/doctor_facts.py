"""Made-up facts of a healthy node, for tests of the doctor."""

from __future__ import annotations

from semel.protocol.api.diagnostics import (
    DiskFacts,
    GroupFacts,
    HeldPartition,
    NodeSnapshot,
    OpenTransaction,
    SettingFact,
    TopicFacts,
)
from semel.protocol.ids import TopicPartition

NOW = 1_800_000_000_000
MINUTE = 60_000
HOUR = 60 * MINUTE
T0 = TopicPartition("orders", 0)
GIB = 1 << 30

HEALTHY_DISK = DiskFacts(
    data_dir="/var/lib/semel",
    total_bytes=100 * GIB,
    free_bytes=50 * GIB,
    min_free_bytes=256 << 20,
    durability="disk",
    syncs=1_000,
    slow_syncs=0,
    slow_sync_ms=205,
    sync_ms_mean=0.5,
    sync_ms_recent=0.4,
    journal_bytes=0,
    journal_max_bytes=2 * GIB,
    write_error="",
    started_ms=NOW - HOUR,
    started_clean=True,
    unclean_ms=-1,
    unclean_found="",
    damaged_ms=-1,
    damage="",
    maintenance_error="",
)
SETTINGS = {
    "kafka.listeners": "",
    "grpc.listeners": "",
    "durability": "disk",
    "transaction.max.timeout.ms": "900000",
    "offsets.retention.minutes": "10080",
    "transactional.id.expiration.ms": "604800000",
    "producer.id.expiration.ms": "86400000",
    "commit.history.expiration.ms": "2592000000",
    "transaction.two.phase.commit.enable": "false",
    "disk.min.free.bytes": str(256 << 20),
}
TXN = OpenTransaction(
    transactional_id="enrich-0",
    producer_id=7,
    producer_epoch=3,
    state="Ongoing",
    timeout_ms=15 * MINUTE,
    start_ms=NOW - 5_000,
    last_update_ms=NOW - 5_000,
    partitions=(T0,),
    partitions_total=1,
    client_id="enricher",
    client_host="10.0.0.7",
)
HELD = HeldPartition(
    partition=T0,
    last_stable_offset=100,
    high_watermark=120,
    producer_id=7,
    producer_epoch=3,
    first_offset=100,
    since_ms=NOW - 5_000,
    last_append_ms=NOW - 4_000,
    open_transactions=1,
    is_known=True,
)
TOPIC = TopicFacts("orders", 4, 4 * GIB, 0, GIB, 7 * 24 * HOUR, 1, 1, True)
GROUP = GroupFacts("readers", "Stable", 2, 0, TopicPartition("", -1), 0, last_commit_ms=NOW - 1_000)


def settings_with(**changed: str) -> tuple[SettingFact, ...]:
    values = {**SETTINGS, **{name.replace("_", "."): value for name, value in changed.items()}}
    return tuple(SettingFact(name, value, False) for name, value in values.items())


NODE = NodeSnapshot(1, NOW, HEALTHY_DISK, settings=settings_with(), topics=(TOPIC,), topics_total=1, leaders=4)
