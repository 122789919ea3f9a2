"""Which quota counts for a client: the one of the most particular entity (KIP-55), for each kind of quota alone.

From the first to the last: user and client id, user and default client id, user; default user and client id, default
user and default client id, default user; client id, default client id.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from semel.protocol.quotas import DEFAULT, QuotaEntity


class Bound(NamedTuple):
    """A quota that counts for a client.

    who: what shares it: a user, a client id, or both; None where that makes no difference
    """

    who: tuple[str | None, str | None]
    value: float


def bound_of(quotas: Mapping[QuotaEntity, Mapping[str, float]], key: str, user: str, client_id: str) -> Bound | None:
    """Return the quota of a kind that counts for a client; None where nothing bounds it."""
    for of_user, of_client in (
        (user, client_id),
        (user, DEFAULT),
        (user, None),
        (DEFAULT, client_id),
        (DEFAULT, DEFAULT),
        (DEFAULT, None),
        (None, client_id),
        (None, DEFAULT),
    ):
        value = quotas.get(QuotaEntity(of_user, of_client), _NOTHING).get(key)
        if value is not None:
            return Bound((None if of_user is None else user, None if of_client is None else client_id), value)
    return None


def connections_per_second(quotas: Mapping[QuotaEntity, Mapping[str, float]], key: str, address: str) -> float | None:
    """Return how many connections a second are accepted of an address; None where nothing bounds that."""
    value = quotas.get(QuotaEntity(ip=address), _NOTHING).get(key)
    return quotas.get(QuotaEntity(ip=DEFAULT), _NOTHING).get(key) if value is None else value


_NOTHING: Mapping[str, float] = {}
