"""Over which time client quotas are measured."""

from __future__ import annotations

from dataclasses import dataclass

from semel.runtime.setting import PartConfig, setting


@dataclass(frozen=True)
class QuotaConfig(PartConfig):
    """How client quotas are measured; `semel quota` sets them."""

    quota_window_num: int = setting(
        11,
        "Over how many windows the rates of client quotas are measured, the one in progress with them. More allow "
        "larger bursts.",
        minimum=2,
        maximum=3_600,
    )
    quota_window_size_seconds: int = setting(
        1,
        "The length of each of these windows, and the longest that request_percentage and connection_creation_rate "
        "make a client wait at once.",
        unit="s",
        minimum=1,
        maximum=3_600,
    )
    client_quotas_max: int = setting(
        10_000,
        "Users, client ids and addresses of the cluster that have quotas. More are refused with POLICY_VIOLATION: each "
        "change of one makes the table of all again, on each node.",
        minimum=1,
        maximum=100_000,
        dynamic=True,
    )
    controller_quota_window_num: int = setting(
        11,
        "For so many windows of changes a client may save up its controller_mutation_rate.",
        minimum=1,
        maximum=3_600,
    )
    controller_quota_window_size_seconds: int = setting(
        1,
        "The length of each of these windows.",
        unit="s",
        minimum=1,
        maximum=3_600,
    )
