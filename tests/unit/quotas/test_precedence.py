"""Which quota counts for a client, against what Kafka's documentation says, word by word."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semel.broker.quotas.precedence import Bound, bound_of, connections_per_second
from semel.protocol.quotas import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    DEFAULT,
    PRODUCER_BYTE_RATE,
    QuotaEntity,
)

ORDER = (
    ("name", "name"),
    ("name", "default"),
    ("name", "none"),
    ("default", "name"),
    ("default", "default"),
    ("default", "none"),
    ("none", "name"),
    ("none", "default"),
)
"""/config/users/<user>/clients/<client-id> and so on: KIP-55 and Kafka's documentation, the most particular first."""
NAMES = ("a", "b")


def entity(user: str, client: str, of_user: str, of_client: str) -> QuotaEntity:
    named = {"name": of_user, "default": DEFAULT, "none": None}
    return QuotaEntity(named[user], {**named, "name": of_client}[client])


ENTITIES = list(
    dict.fromkeys(entity(*kinds, of_user, of_client) for kinds in ORDER for of_user in NAMES for of_client in NAMES)
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
@given(
    st.dictionaries(
        st.sampled_from(ENTITIES),
        st.dictionaries(st.sampled_from((PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE)), st.integers(1, 99), min_size=1),
    ),
    st.sampled_from(NAMES),
    st.sampled_from(NAMES),
)
def test_the_most_particular_entity_counts_for_each_kind_of_quota(
    quotas: dict[QuotaEntity, dict[str, float]], user: str, client_id: str
) -> None:
    for key in (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE):
        expected: Bound | None = None
        for of_user, of_client in reversed(ORDER):
            value = quotas.get(entity(of_user, of_client, user, client_id), {}).get(key)
            if value is not None:
                who = (None if of_user == "none" else user, None if of_client == "none" else client_id)
                expected = Bound(who, value)
        assert bound_of(quotas, key, user, client_id) == expected


def test_an_address_has_its_own_quota_or_the_default() -> None:
    quotas = {
        QuotaEntity(ip=DEFAULT): {CONNECTION_CREATION_RATE: 5.0},
        QuotaEntity(ip="10.0.0.1"): {CONNECTION_CREATION_RATE: 9.0},
    }
    assert connections_per_second(quotas, CONNECTION_CREATION_RATE, "10.0.0.1") == 9.0
    assert connections_per_second(quotas, CONNECTION_CREATION_RATE, "10.0.0.2") == 5.0
    assert connections_per_second({}, CONNECTION_CREATION_RATE, "10.0.0.2") is None


def test_S5_a_name_in_a_message_is_one_line_whatever_characters_it_has() -> None:
    """Client ids have any characters, and operators read logs in terminals."""
    assert str(QuotaEntity(client_id="x\n\x1b[2Jy")) == r"client-id 'x\n\x1b[2Jy'"
    assert str(QuotaEntity(user="", client_id="x")) == "default user, client-id 'x'"
