"""What an operator may set about groups, by Kafka's names where Kafka has them. docs/groups.md says more of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from semel.protocol.int_bounds import INT16_MAX, INT32_MAX
from semel.runtime.setting import ConfigError, PartConfig, setting

_MINUTE_MS: Final = 60_000


@dataclass(frozen=True)
class GroupConfig(PartConfig):
    """Bounds and timeouts of the group coordinator.

    Kafka waits three seconds for more members before a new group's first rebalance, and its quick-start file sets that
    to zero; here zero is the default, so that a single consumer starts at once.
    """

    group_min_session_timeout_ms: int = setting(
        6_000,
        "The shortest session timeout that a member may ask for.",
        unit="ms",
        minimum=1,
        maximum=INT32_MAX,
        at_most="group.max.session.timeout.ms",
    )
    group_max_session_timeout_ms: int = setting(
        1_800_000, "The longest session timeout that a member may ask for.", unit="ms", minimum=1, maximum=INT32_MAX
    )
    group_initial_rebalance_delay_ms: int = setting(
        0,
        "How long the first rebalance of an empty group waits for more members. 0: a single consumer starts at once.",
        unit="ms",
        minimum=0,
        maximum=INT32_MAX,
    )
    group_max_size: int = setting(1_000, "The most members of one group.", minimum=1, maximum=INT32_MAX)
    group_new_member_join_timeout_ms: int = setting(
        300_000,
        "How long a new member of a rebalance is kept though it is not heard of.",
        unit="ms",
        minimum=1,
        maximum=INT32_MAX,
    )
    group_id_max_bytes: int = setting(1_024, "The longest id of a group.", unit="bytes", minimum=1, maximum=8_191)
    group_protocols_max: int = setting(64, "The most assignors that a member may offer.", minimum=1, maximum=1_000)
    group_member_metadata_max_bytes: int = setting(
        262_144,
        "The largest subscription of a member, all its assignors together.",
        unit="bytes",
        minimum=1,
        maximum=1 << 24,
    )
    group_max_bytes: int = setting(
        8 << 20,
        "What the members of one group may hold in memory: subscriptions, assignments, ids. A member that is too many "
        "is refused with GROUP_MAX_SIZE_REACHED.",
        unit="bytes",
        minimum=1,
    )
    group_members_max_bytes: int = setting(
        128 << 20,
        "What the members of all groups of this node may hold in memory together. A member that is too many is refused "
        "with GROUP_MAX_SIZE_REACHED; those that are in continue.",
        unit="bytes",
        minimum=1,
    )
    group_consumer_session_timeout_ms: int = setting(
        45_000,
        "Members of consumer groups (KIP-848) that are silent for this long are removed.",
        unit="ms",
        minimum=1,
        maximum=INT32_MAX,
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        5_000,
        "How often members of consumer groups send heartbeats; each takes one step of a rebalance.",
        unit="ms",
        minimum=1,
        maximum=INT32_MAX,
        at_most="group.consumer.session.timeout.ms",
    )
    group_consumer_max_size: int = setting(
        1_000, "The most members of one consumer group.", minimum=1, maximum=INT32_MAX
    )
    group_consumer_assignors: tuple[str, ...] = setting(
        ("uniform", "range"),
        "What consumer groups may be assigned by; the first where members do not choose.",
        choices=("uniform", "range"),
    )
    group_consumer_assignor_offload_enable: bool = setting(
        True,
        "Whether the assignments of large consumer groups are computed in a thread (KIP-1263). Members keep what they "
        "have until then. Without it, each holds up everything else that the node does.",
    )
    group_consumer_assignment_interval_ms: int = setting(
        1_000,
        "How long a consumer group whose assignment was computed in a thread waits at least before the next one, which "
        "is then for all changes meanwhile. It waits ten times as long as the computation took, if that is longer. "
        "Small groups are assigned at once.",
        unit="ms",
        minimum=0,
        maximum=INT32_MAX,
    )
    group_consumer_migration_policy: str = setting(
        "bidirectional",
        "Which way groups with members may move between the protocols. upgrade: to the newer one when a member joins "
        "by it. downgrade: back when the last such member is gone.",
        choices=("bidirectional", "upgrade", "downgrade", "disabled"),
    )
    offset_metadata_max_bytes: int = setting(
        4_096, "The longest metadata text of a committed offset.", unit="bytes", minimum=0, maximum=INT16_MAX
    )
    offsets_max_bytes: int = setting(
        256 << 20,
        "What the committed offsets of all groups of this node may hold in memory together, some 400 bytes each and "
        "2 KB for each group. Offsets of partitions that a group has none of are refused beyond it, with "
        "INVALID_COMMIT_OFFSET_SIZE; groups that have theirs continue.",
        unit="bytes",
        minimum=1,
    )
    offsets_retention_minutes: int = setting(
        10_080,
        "How long the offsets of an empty group are kept.",
        unit="minutes",
        minimum=1,
        maximum=INT32_MAX,
    )
    offsets_retention_check_interval_ms: int = setting(
        600_000, "How often expired offsets are looked for.", unit="ms", minimum=1, maximum=INT32_MAX
    )
    group_assigned_at_once_max: int = 2_000
    """Members, subscriptions and partitions together that are assigned within a turn of the event loop: 10 to 20 ms."""
    group_records_max_bytes: int = 1_000_000
    """The largest batch of records one decision may append; below the internal topic's max.message.bytes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.group_consumer_assignors:
            raise ConfigError("group.consumer.assignors is empty: use uniform, range, or both")
        if self.group_assigned_at_once_max < 0 or self.group_records_max_bytes <= 0:
            raise ConfigError(
                f"group_assigned_at_once_max = {self.group_assigned_at_once_max} or group_records_max_bytes = "
                f"{self.group_records_max_bytes} is too small"
            )

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * _MINUTE_MS
