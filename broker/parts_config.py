"""What each part of a node is configured with, from the node's one configuration."""

from __future__ import annotations

from semel.broker.config.node_config import Durability, NodeConfig
from semel.broker.config.sources import parse_connection_overrides
from semel.broker.listeners.kafka.limits import KafkaLimits
from semel.broker.log.journal import JournalConfig
from semel.broker.logs.config import DurabilityMode, LogManagerConfig
from semel.group_coordinator.config import GroupConfig
from semel.txn_coordinator.config import TransactionConfig


def log_manager_config(config: NodeConfig, cluster_id: str) -> LogManagerConfig:
    on_disk = config.durability == Durability.DISK.value
    return LogManagerConfig(
        node_id=config.node_id,
        cluster_id=cluster_id,
        durability=DurabilityMode.JOURNAL if on_disk else DurabilityMode.OS,
        journal=JournalConfig(
            file_bytes=config.journal_file_bytes,
            buffer_bytes_max=config.journal_buffer_max_bytes,
            unsynced_bytes_max=config.journal_unsynced_max_bytes,
        ),
        journal_flush_bytes=config.journal_flush_bytes,
        journal_bytes_max=config.journal_max_bytes,
        flush_interval_ms=config.log_flush_interval_ms,
        retention_check_interval_ms=config.log_retention_check_interval_ms,
        cleaner_interval_ms=config.log_cleaner_backoff_ms,
        cleaner_keys_max=config.log_cleaner_max_keys,
        producer_expiry_interval_ms=config.producer_id_expiration_check_interval_ms,
        producer_id_expiration_ms=config.producer_id_expiration_ms,
        producer_ids_max=config.producer_ids_max,
        producer_ids_per_partition_max=config.producer_ids_per_partition_max,
        min_free_bytes=config.disk_min_free_bytes,
        open_files_max=config.log_max_open_files,
    )


def kafka_limits(config: NodeConfig) -> KafkaLimits:
    return KafkaLimits(
        socket_request_max_bytes=config.socket_request_max_bytes,
        socket_send_buffer_bytes=config.socket_send_buffer_bytes,
        queued_max_request_bytes=config.queued_max_request_bytes,
        request_receive_timeout_ms=config.kafka_request_receive_timeout_ms,
        max_in_flight_requests=config.kafka_max_in_flight_requests,
        max_connections=config.max_connections,
        max_connections_per_address=config.kafka_max_connections_per_ip,
        max_connections_overrides=parse_connection_overrides(config.kafka_max_connections_overrides),
        connections_max_idle_ms=config.connections_max_idle_ms,
        output_max_bytes=config.kafka_output_max_bytes,
        fetch_max_bytes=config.fetch_max_bytes,
        fetch_sessions_max=config.max_incremental_fetch_session_cache_slots,
        fetch_session_partitions_max=config.fetch_session_max_partitions,
        fetch_session_min_idle_ms=config.fetch_session_min_idle_ms,
    )


def transaction_config(config: NodeConfig) -> TransactionConfig:
    return TransactionConfig(
        transaction_max_timeout_ms=config.transaction_max_timeout_ms,
        transactional_id_expiration_ms=config.transactional_id_expiration_ms,
        transactional_id_max_bytes=config.transactional_id_max_bytes,
        transactional_ids_bytes_max=config.transactional_ids_max_bytes,
        two_phase_commit_enable=config.transaction_two_phase_commit_enable,
        commit_history_max=config.commit_history_max,
        commit_history_expiration_ms=config.commit_history_expiration_ms,
        commit_one_off_expiration_ms=config.commit_one_off_expiration_ms,
        shared_writers_max=config.shared_transaction_max_writers,
        add_partitions_wait_ms=config.add_partitions_to_txn_retry_backoff_max_ms,
        marker_writes_in_flight_max=config.transaction_markers_max_in_flight,
        marker_retry_backoff_ms=config.transaction_marker_retry_backoff_ms,
        marker_retry_backoff_max_ms=config.transaction_marker_retry_backoff_max_ms,
    )


def group_config(config: NodeConfig) -> GroupConfig:
    return GroupConfig(
        group_min_session_timeout_ms=config.group_min_session_timeout_ms,
        group_max_session_timeout_ms=config.group_max_session_timeout_ms,
        group_initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        group_new_member_join_timeout_ms=config.group_new_member_join_timeout_ms,
        group_max_size=config.group_max_size,
        group_member_metadata_max_bytes=config.group_member_metadata_max_bytes,
        group_max_bytes=config.group_max_bytes,
        group_members_max_bytes=config.group_members_max_bytes,
        offsets_max_bytes=config.offsets_max_bytes,
        group_id_max_bytes=config.group_id_max_bytes,
        group_protocols_max=config.group_protocols_max,
        group_consumer_session_timeout_ms=config.group_consumer_session_timeout_ms,
        group_consumer_heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
        group_consumer_max_size=config.group_consumer_max_size,
        group_consumer_assignors=config.group_consumer_assignors,
        group_consumer_migration_policy=config.group_consumer_migration_policy,
        group_consumer_assignor_offload_enable=config.group_consumer_assignor_offload_enable,
        group_consumer_assignment_interval_ms=config.group_consumer_assignment_interval_ms,
        offset_metadata_max_bytes=config.offset_metadata_max_bytes,
        offsets_retention_minutes=config.offsets_retention_minutes,
        offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
    )
