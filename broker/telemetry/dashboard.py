"""Makes docker/grafana/semel.json: `python -m semel.broker.telemetry.dashboard > docker/grafana/semel.json`.

Each panel is a line of the table below, so that what is asked of Prometheus can be read, and tested against a node.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

_COLUMNS: Final = 24
_ROW_HEIGHT: Final = 8
_STAT_HEIGHT: Final = 4

_HERE: Final = 'instance=~"$instance"'
_TOPIC: Final = "messaging_destination_name"
_PARTITION: Final = "messaging_destination_partition_id"
_GROUP: Final = "messaging_consumer_group_name"
_BY_PARTITION: Final = "{{" + _TOPIC + "}}-{{" + _PARTITION + "}}"


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel: its queries by legend. `red_from`: from this value on it is shown as trouble."""

    title: str
    unit: str
    queries: Mapping[str, str]
    description: str = ""
    kind: str = "timeseries"
    width: int = 8
    red_from: float | None = None


def _rate(metric: str, labels: str = "", by: str = "") -> str:
    selector = f"{_HERE},{labels}" if labels else _HERE
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} (rate({metric}{{{selector}}}[$__rate_interval]))"


def _quantile(quantile: float, metric: str, by: str = "", labels: str = "") -> str:
    selector = f"{_HERE},{labels}" if labels else _HERE
    grouping = f"le, {by}" if by else "le"
    rate = f"rate({metric}_bucket{{{selector}}}[$__rate_interval])"
    return f"histogram_quantile({quantile}, sum by ({grouping}) ({rate}))"


def _now(metric: str, labels: str = "", function: str = "sum", by: str = "") -> str:
    selector = f"{_HERE},{labels}" if labels else _HERE
    grouping = f" by ({by})" if by else ""
    return f"{function}{grouping} ({metric}{{{selector}}})"


def _top(metric: str, count: int = 10) -> str:
    return f"topk({count}, {metric}{{{_HERE}}} > 0)"


def _quantiles(metric: str, by: str = "", labels: str = "") -> dict[str, str]:
    legend = " {{" + by + "}}" if by else ""
    return {
        f"p{round(quantile * 100)}{legend}": _quantile(quantile, metric, by, labels) for quantile in (0.5, 0.95, 0.99)
    }


def _stat(title: str, unit: str, query: str, *, description: str = "", red_from: float | None = None) -> Panel:
    return Panel(title, unit, {"": query}, description, "stat", 4, red_from)


ROWS: Final[Mapping[str, tuple[Panel, ...]]] = {
    "Overview": (
        _stat("Nodes that serve", "short", _now("semel_node_ready")),
        _stat(
            "Oldest transaction that holds readers back", "s",
            _now("semel_partition_lso_age_max_seconds", function="max"),
            description="read_committed readers of a partition wait for it. `semel doctor` names it, and what ends it.",
            red_from=300,
        ),
        _stat("Offline partitions", "short", _now("semel_partitions", 'semel_state="offline"'), red_from=1),
        _stat(
            "Disk free", "percentunit",
            f"min (semel_disk_free_bytes{{{_HERE}}} / semel_disk_limit_bytes{{{_HERE}}})",
        ),
        _stat("Largest lag of a group", "short", f"max (sum by ({_GROUP}) (semel_group_lag{{{_HERE}}}))"),
        _stat(
            "Slowest syncs (p99)", "s", _quantile(0.99, "semel_journal_sync_duration_seconds"), red_from=0.1,
            description="Acknowledgements wait for the journal's syncs.",
        ),
        Panel("Records in and out", "ops", {
            "appended": _rate("semel_produce_records_total"), "fetched": _rate("semel_fetch_records_total"),
        }),
        Panel("Bytes in and out", "Bps", {
            "appended": _rate("semel_produce_io_bytes_total"), "fetched": _rate("semel_fetch_io_bytes_total"),
            "network {{network_io_direction}}": _rate("semel_network_io_bytes_total", by="network_io_direction"),
        }),
        Panel("Transactions that end", "ops", {
            "{{semel_outcome}}": _rate("semel_transaction_duration_seconds_count", by="semel_outcome"),
        }),
    ),
    "Replication and the cluster": (
        _stat("Partitions without a leader", "short", _now("semel_cluster_partitions_offline"), red_from=1,
              description="`semel doctor` names them, and the node whose start brings each of them back."),
        _stat("Below min.insync.replicas", "short", _now("semel_replication_under_min_isr"), red_from=1,
              description="Producers with acks=all, and transactions, are refused there."),
        _stat("Under-replicated partitions", "short", _now("semel_replication_under_replicated"), red_from=1),
        _stat("Nodes taken for dead", "short", _now("semel_cluster_nodes", 'semel_state="fenced"'), red_from=1),
        _stat("Furthest follower", "short", _now("semel_replication_lag_max", function="max"),
              description="Committed records that a follower lacks."),
        _stat("Controllers", "short", _now("semel_cluster_controller"),
              description="1, but for moments. 0: nobody elects leaders."),
        Panel("Followers behind", "short", {"{{instance}}": f"semel_replication_lag_max{{{_HERE}}}"}),
        Panel("Replicas", "short", {
            "{{instance}} {{semel_state}}": _now("semel_replication_replicas", by="instance, semel_state"),
        }),
        Panel("Changes of in-sync sets", "ops", {
            "{{semel_kind}}": _rate("semel_replication_isr_changes_total", by="semel_kind"),
        }),
        Panel("Elections and dead nodes", "ops", {
            "{{semel_kind}} elections": _rate("semel_cluster_elections_total", by="semel_kind"),
            "dead nodes": _rate("semel_cluster_fencings_total"),
        }),
        Panel("Failover", "s", _quantiles("semel_cluster_failover_duration_seconds"),
              "From a dead node's last heartbeat until others lead what it led."),
        Panel("The metadata's database", "s", {
            "{{instance}} answered": f"semel_metadata_age_seconds{{{_HERE}}}",
            "oldest partition without a leader": _now(
                "semel_cluster_partitions_offline_age_max_seconds", function="max"
            ),
        }, "How long ago it last answered. While it is away nothing can be elected or created."),
        Panel("Behind the metadata", "short", {
            "changes": _now("semel_cluster_metadata_behind_max", function="max"),
            "failed heartbeats, a minute": f"60 * {_rate('semel_metadata_heartbeats_failed_total')}",
        }),
    ),
    "Producers and idempotence": (
        Panel("Produce requests", "s",
              _quantiles("semel_request_duration_seconds", labels='semel_api="PRODUCE"'),
              "Until they are acknowledged: with acks=all, until they are durable."),
        Panel("From append to durable", "s", _quantiles("semel_journal_commit_duration_seconds"),
              "What acks=all waits for: mostly the sync of the journal."),
        Panel("Batches", "ops", {"{{semel_outcome}}": _rate("semel_produce_batches_total", by="semel_outcome")},
              "duplicate: repeated by an idempotent producer, and not appended again (P1)."),
        Panel("Refused batches, by error", "ops", {
            "{{error_type}}": _rate("semel_produce_refused_total", by="error_type"),
        }),
        Panel("Waiting", "short", {
            "for the sync": _now("semel_produce_purgatory"), "for the coordinator": _now("semel_produce_verifying"),
        }),
        Panel("Verifications and time-outs", "ops", {
            "verifications": _rate("semel_produce_verifications_total"),
            "time-outs": _rate("semel_produce_timeouts_total"),
        }),
        Panel("Busiest partitions", "ops", {
            _BY_PARTITION: f"topk(10, rate(semel_partition_high_watermark{{{_HERE}}}[$__rate_interval]))",
        }),
    ),
    "Transactions and last stable offsets": (
        Panel("Held-back partitions: age of the transaction", "s", {
            _BY_PARTITION: _top("semel_partition_lso_age_seconds"),
        }, "How long the transaction has been open that holds the last stable offset of the partition.", red_from=300),
        Panel("Held-back partitions: records", "short", {_BY_PARTITION: _top("semel_partition_lso_lag")}),
        Panel("Oldest open transaction", "s", {"{{instance}}": f"semel_transaction_age_max_seconds{{{_HERE}}}"}),
        Panel("Transactional ids by state", "short", {
            "{{semel_state}}": _now("semel_transactions", by="semel_state"),
        }),
        Panel("Duration of committed ones", "s",
              _quantiles("semel_transaction_duration_seconds", labels='semel_outcome="committed"')),
        Panel("Fencings and time-outs", "ops", {
            "fenced: {{semel_kind}}": _rate("semel_producer_fencings_total", by="semel_kind"),
            "timed out": _rate("semel_transaction_timeouts_total"),
        }),
        Panel("Decided, markers under way", "short", {"transactions": _now("semel_transaction_markers_pending")}),
    ),
    "Groups and lag": (
        Panel("Lag by group", "short", {
            "{{" + _GROUP + "}}": f"topk(10, sum by ({_GROUP}) (semel_group_lag{{{_HERE}}}))",
        }, width=12),
        Panel("Lag by partition", "short", {
            "{{" + _GROUP + "}} " + _BY_PARTITION: _top("semel_group_lag"),
        }, width=12),
        Panel("Rebalances", "ops", {"{{" + _GROUP + "}}": _rate("semel_group_rebalances_total", by=_GROUP)}),
        Panel("Members", "short", {"{{" + _GROUP + "}}": _now("semel_group_members", by=_GROUP)}),
        Panel("Groups by state", "short", {"{{semel_state}}": _now("semel_groups", by="semel_state")}),
        Panel("Coordinators' partitions", "short", {
            "{{" + _TOPIC + "}} {{semel_state}}": _now("semel_coordinator_partitions", by=f"{_TOPIC}, semel_state"),
        }),
        Panel("Loading a coordinator took", "s", {
            "{{" + _TOPIC + "}}": f"semel_coordinator_load_duration_seconds{{{_HERE}}}",
        }),
        Panel("Not shown, beyond the bounds", "short", {
            "partitions": _now("semel_partition_unlabelled"), "lags": _now("semel_group_unlabelled"),
        }, "metrics.max.partitions and metrics.max.group.partitions bound what is shown."),
    ),
    "Storage": (
        Panel("Syncs of the journal", "s", _quantiles("semel_journal_sync_duration_seconds")),
        Panel("Appends for each sync", "short", {
            "appends": f"{_rate('semel_journal_entries_total')} / {_rate('semel_journal_sync_duration_seconds_count')}",
        }, "Group commit: the busier the node, the more appends one sync answers."),
        Panel("Journal", "bytes", {
            "to be read by a recovery": _now("semel_journal_size_bytes"),
            "not durable yet": _now("semel_journal_unsynced_bytes"), "not flushed": _now("semel_log_dirty_bytes"),
        }),
        Panel("Disk", "bytes", {
            "free": _now("semel_disk_free_bytes"), "logs": _now("semel_log_size_bytes"),
            "reserve": _now("semel_disk_reserve_bytes"),
        }),
        Panel("Largest partitions", "bytes", {_BY_PARTITION: _top("semel_partition_size_bytes")}),
        Panel("Writing", "Bps", {"journal": _rate("semel_journal_io_bytes_total")}),
        Panel("Flushes and compactions", "ops", {
            "flushes": _rate("semel_log_flushes_total"), "compactions": _rate("semel_log_compactions_total"),
            "seconds in flushes": _rate("semel_log_flush_time_seconds_total"),
        }),
        Panel("The last start", "s", {"recovery {{instance}}": f"semel_node_recovery_duration_seconds{{{_HERE}}}"}),
        Panel("Restored by the last recovery", "short", {
            "batches": _now("semel_node_recovery_restored"),
        }),
    ),
    "Requests": (
        Panel("Requests", "ops", {"{{semel_api}}": _rate("semel_request_duration_seconds_count", by="semel_api")}),
        Panel("Duration (p99)", "s", {
            "{{semel_api}}": _quantile(0.99, "semel_request_duration_seconds", "semel_api"),
        }, "Fetch waits for records: that is no trouble."),
        Panel("Size (p95)", "bytes", {"{{semel_api}}": _quantile(0.95, "semel_request_size_bytes", "semel_api")}),
        Panel("gRPC", "ops", {"{{rpc_method}}": _rate("rpc_server_call_duration_seconds_count", by="rpc_method")}),
        Panel("gRPC: duration (p99)", "s", {
            "{{rpc_method}}": _quantile(0.99, "rpc_server_call_duration_seconds", "rpc_method"),
        }),
        Panel("gRPC: errors", "ops", {
            "{{rpc_method}} {{error_type}}":
                _rate("rpc_server_call_duration_seconds_count", 'error_type!=""', "rpc_method, error_type"),
        }),
        Panel("Connections", "short", {"open": _now("semel_connections")}),
        Panel("Connections that come and go", "ops", {
            "{{semel_kind}}": _rate("semel_connection_events_total", by="semel_kind"),
        }),
        Panel("Limits in use", "percentunit", {
            "{{instance}} {{semel_setting}}": f"semel_limit_used{{{_HERE}}} / semel_limit_max{{{_HERE}}}",
        }, "docs/reference/limits.md says what each bounds.", red_from=0.8),
        Panel("Refused for a limit", "ops", {
            "{{semel_setting}}": _rate("semel_limit_refusals_total", by="semel_setting"),
        }),
        Panel("Queues", "short", {
            "requests in flight": _now("semel_request_in_flight"), "waiting fetches": _now("semel_fetch_waiting"),
            "fetch sessions": _now("semel_fetch_sessions"),
            "sessions given up, a minute": f"60 * {_rate('semel_fetch_session_evictions_total')}",
        }),
    ),
    "The process": (
        Panel("How late the event loop is", "s", _quantiles("semel_node_loop_delay_seconds"),
              "How long requests wait for their turn."),
        Panel("CPU", "percentunit", {"{{cpu_mode}}": _rate("process_cpu_time_seconds_total", by="cpu_mode")}),
        Panel("Memory", "bytes", {
            "resident": _now("process_memory_usage_bytes"),
            "held for large requests": _now("semel_request_memory_bytes"),
        }),
        Panel("Open files and sockets", "short", {"open": _now("process_unix_file_descriptor_count")}),
        Panel("Up since", "s", {"{{instance}}": f"semel_node_uptime_seconds{{{_HERE}}}"}),
    ),
}  # fmt: skip


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    return {
        "uid": "semel",
        "title": "Semel",
        "tags": ["semel"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Data source",
                    "type": "datasource",
                    "query": "prometheus",
                    "current": {},
                },
                {
                    "name": "instance",
                    "label": "Node",
                    "type": "query",
                    "datasource": _DATA_SOURCE,
                    "definition": "label_values(semel_node_ready, instance)",
                    "query": {"query": "label_values(semel_node_ready, instance)", "refId": "instance"},
                    "refresh": 2,
                    "includeAll": True,
                    "multi": True,
                    "allValue": ".*",
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "panels": list(_panels()),
    }


_DATA_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


def _panels() -> Iterator[dict[str, Any]]:
    number = top = 0
    for row, panels in ROWS.items():
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": row,
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": top, "w": _COLUMNS, "h": 1},
        }
        top, left, height = top + 1, 0, 0
        for panel in panels:
            if left + panel.width > _COLUMNS:
                top, left, height = top + height, 0, 0
            number += 1
            height = max(height, _STAT_HEIGHT if panel.kind == "stat" else _ROW_HEIGHT)
            yield _panel(panel, number, left, top)
            left += panel.width
        top += height


def _panel(panel: Panel, number: int, left: int, top: int) -> dict[str, Any]:
    height = _STAT_HEIGHT if panel.kind == "stat" else _ROW_HEIGHT
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.red_from is not None:
        steps.append({"color": "red", "value": panel.red_from})
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _DATA_SOURCE,
        "gridPos": {"x": left, "y": top, "w": panel.width, "h": height},
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}},
            "overrides": [],
        },
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}} if panel.kind == "timeseries" else {},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _DATA_SOURCE,
                "expr": query,
                "legendFormat": legend or "__auto",
            }
            for index, (legend, query) in enumerate(panel.queries.items())
        ],
    }


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=2))
