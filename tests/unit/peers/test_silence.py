"""When a node that is silent counts as dead."""

from __future__ import annotations

import pytest

from semel.broker.peers.silence import STEADY_S, FalseAlarms, Patience, Sign

PATIENCE = Patience(session_ms=2_000, heartbeat_ms=400)


@pytest.mark.parametrize(
    ("sign", "dead_from_ms"),
    [(Sign.REFUSED, 800), (Sign.NONE, 2_000), (Sign.ANSWERED, 6_000)],
    ids=lambda one: str(one),
)
def test_a_node_is_dead_after_two_heartbeats_one_session_or_three_by_what_its_address_says(
    sign: Sign, dead_from_ms: int
) -> None:
    assert not PATIENCE.is_dead(dead_from_ms - 1, sign)
    assert PATIENCE.is_dead(dead_from_ms, sign)


def test_a_node_is_asked_before_anybody_counts_it_as_dead() -> None:
    assert not PATIENCE.is_suspicious(799)
    assert PATIENCE.is_suspicious(800)
    assert Patience(session_ms=500, heartbeat_ms=400).is_suspicious(500)


def test_a_dead_node_is_heard_once_its_heartbeats_come_and_not_because_it_answers() -> None:
    assert PATIENCE.is_heard(0, Sign.NONE)
    assert PATIENCE.is_heard(1_999, Sign.ANSWERED)
    assert not PATIENCE.is_heard(2_000, Sign.ANSWERED)


def test_a_node_whose_address_refuses_does_not_live_again_for_the_rest_of_its_session() -> None:
    assert not any(PATIENCE.is_heard(silent_ms, Sign.REFUSED) for silent_ms in range(800, 3_000, 100))
    assert PATIENCE.is_heard(0, Sign.REFUSED)


@pytest.mark.parametrize("sign", Sign)
def test_nobody_is_dead_and_heard_at_once(sign: Sign) -> None:
    for silent_ms in range(0, 10_000, 50):
        assert not (PATIENCE.is_dead(silent_ms, sign) and PATIENCE.is_heard(silent_ms, sign))


def test_a_node_that_was_taken_for_dead_in_error_has_more_time_until_a_minute_has_passed_without() -> None:
    """On busy machines nodes took each other for dead in turn, each time because of what the last error had cost."""
    alarms, run = FalseAlarms(), (2, 7)
    sessions = []
    for now_s in (0.0, 10.0, 20.0, 30.0):
        sessions.append(alarms.session_ms(run, 2_000, now_s))
        alarms.returned(run, now_s)
    assert sessions == [2_000, 4_000, 8_000, 8_000]
    assert alarms.session_ms((2, 8), 2_000, 31.0) == 2_000, "another run of the node"
    assert alarms.session_ms(run, 2_000, 30.0 + STEADY_S - 1) == 8_000
    assert alarms.session_ms(run, 2_000, 30.0 + STEADY_S) == 2_000
    alarms.returned(run, 30.0 + STEADY_S)
    assert alarms.session_ms(run, 2_000, 31.0 + STEADY_S) == 4_000, "old errors do not count"
