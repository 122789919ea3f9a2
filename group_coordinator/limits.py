"""What is refused at the edge, before a machine sees it: ids and timeouts out of bounds, and too many bytes."""

from __future__ import annotations

from semel.group_coordinator.config import GroupConfig
from semel.protocol.api.consumer_groups import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerGroupHeartbeatRequest,
)
from semel.protocol.api.groups import JoinGroupRequest, LeaveGroupRequest
from semel.protocol.errors import ErrorCode, UsageError, error_for


def check_group_id(group_id: str, config: GroupConfig, *, may_be_empty: bool = False) -> None:
    """Raise INVALID_GROUP_ID. Old clients without groups commit, fetch, describe and delete under the empty id."""
    if not group_id and not may_be_empty:
        raise error_for(ErrorCode.INVALID_GROUP_ID, "a group id must not be empty")
    size_bytes = _size_bytes(group_id)
    if size_bytes > config.group_id_max_bytes:
        raise error_for(
            ErrorCode.INVALID_GROUP_ID,
            f"a group id has at most {config.group_id_max_bytes} bytes (group.id.max.bytes), not {size_bytes}",
        )


def check_join(request: JoinGroupRequest, config: GroupConfig) -> None:
    """Raise INVALID_SESSION_TIMEOUT, or INVALID_REQUEST where something is larger than it may be."""
    check_group_id(request.group_id, config)
    if not config.group_min_session_timeout_ms <= request.session_timeout_ms <= config.group_max_session_timeout_ms:
        raise error_for(
            ErrorCode.INVALID_SESSION_TIMEOUT,
            f"session.timeout.ms={request.session_timeout_ms} must be from {config.group_min_session_timeout_ms} to "
            f"{config.group_max_session_timeout_ms} (group.min.session.timeout.ms, group.max.session.timeout.ms)",
        )
    for name, text in (
        ("member id", request.member_id or request.new_member_id),
        ("group.instance.id", request.group_instance_id or ""),
        ("client.id", request.client_id),
        ("client host", request.client_host),
        ("protocol type", request.protocol_type),
    ):
        _check_size(name, _size_bytes(text), 4 * config.group_id_max_bytes)
    if len(request.protocols) > config.group_protocols_max:
        raise UsageError(f"at most {config.group_protocols_max} protocols are offered, not {len(request.protocols)}")
    metadata_bytes = sum(len(protocol.metadata) + _size_bytes(protocol.name) for protocol in request.protocols)
    _check_size("metadata of a member", metadata_bytes, config.group_member_metadata_max_bytes)


def check_consumer_heartbeat(request: ConsumerGroupHeartbeatRequest, config: GroupConfig) -> None:
    """Raise INVALID_REQUEST where a heartbeat contradicts itself or is too large (KIP-848)."""
    check_group_id(request.group_id, config)
    for name, text in (
        ("member id", request.member_id or request.new_member_id),
        ("group.instance.id", request.instance_id),
        ("client.rack", request.rack_id),
        ("client.id", request.client_id),
        ("client host", request.client_host),
    ):
        if text is not None:
            _check_size(name, _size_bytes(text), 4 * config.group_id_max_bytes)
    if request.instance_id == "" or request.rack_id == "":
        raise UsageError("an instance id or a rack id is left out, or not empty")
    if request.member_epoch < LEAVE_STATIC_EPOCH:
        raise UsageError(f"a member epoch is 0 to join, -1 or -2 to leave, or above; not {request.member_epoch}")
    if request.member_epoch == LEAVE_STATIC_EPOCH and request.instance_id is None:
        raise UsageError("only a static member leaves with the epoch -2: give its instance id, or leave with -1")
    if not request.member_id and (request.member_epoch != JOIN_EPOCH or not request.new_member_id):
        raise UsageError("a heartbeat needs the member's id; make one that stays the same for the life of the client")
    if request.member_epoch not in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
        _check_wish(request, config)


def _check_wish(request: ConsumerGroupHeartbeatRequest, config: GroupConfig) -> None:
    wish = [*(request.topic_names or ()), request.topic_regex or "", request.server_assignor or ""]
    wish_bytes = sum(_size_bytes(text) + 2 for text in wish)
    _check_size("subscription of a member", wish_bytes, config.group_member_metadata_max_bytes)
    if request.member_epoch != JOIN_EPOCH:
        return
    if request.rebalance_timeout_ms <= 0:
        raise UsageError(f"a joining member needs a rebalance timeout above 0, not {request.rebalance_timeout_ms}")
    if request.topic_names is None and not request.topic_regex:
        raise UsageError("a joining member needs the names of its topics, or a regular expression for them")
    if request.owned is None or request.owned:
        raise UsageError("a joining member owns no partitions: it sends an empty list of them")


def check_leave(request: LeaveGroupRequest, config: GroupConfig) -> None:
    """Raise INVALID_REQUEST where more members are to leave than a group can have."""
    check_group_id(request.group_id, config)
    if len(request.members) > config.group_max_size:
        raise UsageError(f"a group has at most {config.group_max_size} members; {len(request.members)} cannot leave it")


def _check_size(name: str, size_bytes: int, size_bytes_max: int) -> None:
    if size_bytes > size_bytes_max:
        raise UsageError(f"the {name} may have at most {size_bytes_max} bytes, not {size_bytes}")


def _size_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
