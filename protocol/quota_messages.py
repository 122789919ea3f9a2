"""Client quotas as the messages of semel.v1 carry them."""

from __future__ import annotations

from semel.protocol.errors import UsageError
from semel.protocol.quotas import (
    ClientQuota,
    MatchType,
    QuotaAlteration,
    QuotaEntity,
    QuotaFilter,
    QuotaMatch,
)
from semel.protocol.v1 import quotas_pb2


def entity_message(entity: QuotaEntity) -> quotas_pb2.QuotaEntity:
    """Return the message of an entity."""
    return quotas_pb2.QuotaEntity(user=entity.user, client_id=entity.client_id, ip=entity.ip)


def entity_of_message(message: quotas_pb2.QuotaEntity) -> QuotaEntity:
    """Return the entity of a message. It is not checked."""
    return QuotaEntity(
        message.user if message.HasField("user") else None,
        message.client_id if message.HasField("client_id") else None,
        message.ip if message.HasField("ip") else None,
    )


def alteration_message(alteration: QuotaAlteration) -> quotas_pb2.AlterClientQuotasRequest.Alteration:
    """Return the message of an alteration."""
    return quotas_pb2.AlterClientQuotasRequest.Alteration(
        entity=entity_message(alteration.entity),
        set={key: value for key, value in alteration.values.items() if value is not None},
        remove=[key for key, value in alteration.values.items() if value is None],
    )


def alteration_of(message: quotas_pb2.AlterClientQuotasRequest.Alteration) -> QuotaAlteration:
    """Return the alteration of a message. Raises `UsageError` where it sets what it removes."""
    values: dict[str, float | None] = dict(message.set)
    for key in message.remove:
        if key in values:
            raise UsageError(f"the entity has {key[:100]!r} more than once")
        values[key] = None
    return QuotaAlteration(entity_of_message(message.entity), values)


def filter_message(wanted: QuotaFilter) -> quotas_pb2.DescribeClientQuotasRequest:
    """Return the message of a filter."""
    match = quotas_pb2.DescribeClientQuotasRequest.Match
    return quotas_pb2.DescribeClientQuotasRequest(
        matches=[match(entity_type=each.entity_type, match=each.match, name=each.name) for each in wanted.components],
        strict=wanted.strict,
    )


def filter_of(message: quotas_pb2.DescribeClientQuotasRequest) -> QuotaFilter:
    """Return the filter of a message. It is not checked."""
    return QuotaFilter(
        tuple(
            QuotaMatch(each.entity_type, each.match, each.name if each.match == MatchType.EXACT else None)
            for each in message.matches
        ),
        strict=message.strict,
    )


def quota_message(quota: ClientQuota) -> quotas_pb2.DescribeClientQuotasResponse.ClientQuota:
    """Return the message of an entity's quotas."""
    return quotas_pb2.DescribeClientQuotasResponse.ClientQuota(
        entity=entity_message(quota.entity), values=dict(quota.values)
    )


def quota_of(message: quotas_pb2.DescribeClientQuotasResponse.ClientQuota) -> ClientQuota:
    """Return the quotas of a message."""
    return ClientQuota(entity_of_message(message.entity), dict(message.values))
