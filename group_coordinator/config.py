"""What an operator may set about groups. Names are Kafka's, with underscores; docs/groups.md says what each means."""

from __future__ import annotations

from dataclasses import dataclass

MS_PER_MINUTE = 60_000
KNOWN_ASSIGNORS = frozenset({"uniform", "range"})
MIGRATION_POLICIES = ("bidirectional", "upgrade", "downgrade", "disabled")


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Bounds and timeouts of the group coordinator. Raises `ValueError` where two of them contradict each other.

    Kafka waits three seconds for more members before a new group's first rebalance, and its quick-start file sets that
    to zero; here zero is the default, so that a single consumer starts at once.
    """

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 0
    group_new_member_join_timeout_ms: int = 300_000
    group_max_size: int = 1_000
    group_member_metadata_max_bytes: int = 262_144
    group_max_bytes: int = 8 << 20
    group_members_max_bytes: int = 128 << 20
    offsets_max_bytes: int = 256 << 20
    group_id_max_bytes: int = 1_024
    group_protocols_max: int = 64
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_max_size: int = 1_000
    group_consumer_assignors: tuple[str, ...] = ("uniform", "range")
    group_consumer_migration_policy: str = "bidirectional"
    group_consumer_assignor_offload_enable: bool = True
    group_consumer_assignment_interval_ms: int = 1_000
    group_assigned_at_once_max: int = 2_000
    """Members, subscriptions and partitions together that are assigned within a turn of the event loop: 10 to 20 ms."""
    group_records_max_bytes: int = 1_000_000
    """The largest batch of records one decision may append; below the internal topic's max.message.bytes."""

    def __post_init__(self) -> None:
        if not 0 < self.group_min_session_timeout_ms <= self.group_max_session_timeout_ms:
            raise ValueError(
                f"group.min.session.timeout.ms={self.group_min_session_timeout_ms} must be positive and not above "
                f"group.max.session.timeout.ms={self.group_max_session_timeout_ms}"
            )
        for name in (
            "group_new_member_join_timeout_ms",
            "group_max_size",
            "group_member_metadata_max_bytes",
            "group_max_bytes",
            "group_members_max_bytes",
            "offsets_max_bytes",
            "group_id_max_bytes",
            "group_protocols_max",
            "offsets_retention_minutes",
            "offsets_retention_check_interval_ms",
            "group_consumer_session_timeout_ms",
            "group_consumer_heartbeat_interval_ms",
            "group_consumer_max_size",
            "group_records_max_bytes",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name.replace('_', '.')}={getattr(self, name)} must be positive")
        for name, most in (("group_id_max_bytes", 8_191), ("offset_metadata_max_bytes", 32_767)):
            if getattr(self, name) > most:
                raise ValueError(f"{name.replace('_', '.')}={getattr(self, name)}: Kafka's formats hold {most} at most")
        for name in (
            "group_initial_rebalance_delay_ms",
            "offset_metadata_max_bytes",
            "group_consumer_assignment_interval_ms",
            "group_assigned_at_once_max",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name.replace('_', '.')}={getattr(self, name)} must not be negative")

        if self.group_consumer_heartbeat_interval_ms > self.group_consumer_session_timeout_ms:
            raise ValueError(
                f"group.consumer.heartbeat.interval.ms={self.group_consumer_heartbeat_interval_ms} must not be above "
                f"group.consumer.session.timeout.ms={self.group_consumer_session_timeout_ms}"
            )
        if not self.group_consumer_assignors or not KNOWN_ASSIGNORS.issuperset(self.group_consumer_assignors):
            raise ValueError(
                f"group.consumer.assignors={','.join(self.group_consumer_assignors)!r} must be a list of "
                f"{', '.join(sorted(KNOWN_ASSIGNORS))}, the default first"
            )
        if self.group_consumer_migration_policy not in MIGRATION_POLICIES:
            raise ValueError(
                f"group.consumer.migration.policy={self.group_consumer_migration_policy!r} must be one of "
                f"{', '.join(MIGRATION_POLICIES)}"
            )

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * MS_PER_MINUTE
