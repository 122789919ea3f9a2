"""What a leader counts as committed, and whom it asks to have in sync (R1, R2, R5; KIP-841, KIP-903, KIP-966)."""

from __future__ import annotations

from typing import Any

from semel.broker.logs.divergence import cut_to_follow
from semel.broker.logs.leader_state import LeaderState, WantedIsr

ME, B, C = 1, 2, 3


def leading(
    isr: tuple[int, ...] = (ME, B, C), *, min_isr: int = 2, begin: int = 10, elr: tuple[int, ...] = ()
) -> LeaderState:
    return LeaderState(
        ME,
        leader_epoch=5,
        partition_epoch=7,
        replicas=(ME, B, C),
        isr=isr,
        min_isr=min_isr,
        begin_offset=begin,
        now_s=0.0,
        elr=elr,
    )


def fetch(
    leader: LeaderState,
    node: int,
    offset: int,
    *,
    epoch: int = 100,
    now_s: float = 0.0,
    end: int = 30,
    starts_at: int = 0,
) -> bool:
    return leader.fetched(node, epoch, offset, now_s=now_s, log_end_offset=end, log_start_offset=0, starts_at=starts_at)


def ask(leader: LeaderState, high_watermark: int = 10, **changed: Any) -> WantedIsr | None:
    how: dict[str, Any] = {
        "now_s": 0.0,
        "lag_max_s": 10.0,
        "log_start_offset": 0,
        "log_end_offset": 30,
        "usable": {ME: 99, B: 100, C: 100},
        **changed,
    }
    return leader.wanted_isr(high_watermark, **how)


def test_R1_only_what_all_in_sync_have_is_committed() -> None:
    leader = leading()
    assert leader.committed_end(30) == 0, "nobody has been heard of in this epoch"
    fetch(leader, B, 20)
    assert leader.committed_end(30) == 0
    fetch(leader, C, 15)
    assert leader.committed_end(30) == 15
    assert leader.committed_end(12) == 12, "what is not on the leader's own disk does not count"


def test_R2_nothing_is_committed_while_too_few_are_in_sync() -> None:
    leader = leading((ME,), min_isr=2)
    assert leader.committed_end(30) == 0
    assert leading((ME,), min_isr=1).committed_end(30) == 30


def test_R2_min_insync_replicas_counts_up_to_the_number_of_replicas() -> None:
    leader = LeaderState.alone(0, 0, min_isr=3)
    assert leader.has_min_isr
    assert leader.committed_end(4) == 4


def test_R1_a_set_that_was_asked_for_counts_with_the_one_that_is_known() -> None:
    leader = leading((ME, B), min_isr=1)
    fetch(leader, B, 30)
    fetch(leader, C, 12)
    asked = ask(leader)
    assert asked == WantedIsr(5, 7, {ME: 99, B: 100, C: 100})
    assert leader.committed_end(30) == 12, "it may have been accepted: C may be elected"
    assert ask(leader) is None, "one at a time"
    leader.refused()
    assert leader.committed_end(30) == 30


def test_R1_one_that_is_to_leave_counts_until_it_has_left() -> None:
    leader = leading((ME, B, C))
    fetch(leader, B, 30, now_s=50.0)
    fetch(leader, C, 12)
    asked = ask(leader, now_s=50.0)
    assert asked is not None
    assert asked.isr == {ME: 99, B: 100}
    assert leader.committed_end(30) == 12
    leader.changed((ME, B), (ME, B, C), 8, now_s=50.0)
    assert leader.committed_end(30) == 30
    assert not leader.is_asking


def test_R5_a_state_that_is_older_changes_nothing() -> None:
    leader = leading((ME, B))
    fetch(leader, B, 30)
    fetch(leader, C, 30)
    assert ask(leader) is not None
    leader.changed((ME,), (ME, B, C), 7, now_s=0.0)
    assert leader.isr == (ME, B)
    assert leader.is_asking


def test_R5_a_follower_joins_with_all_that_is_committed_and_all_from_before_the_epoch() -> None:
    leader = leading((ME, B), begin=10)
    fetch(leader, C, 9)
    assert ask(leader, high_watermark=5) is None, "below the beginning of the epoch the leader's mark may be stale"
    fetch(leader, C, 10)
    assert ask(leader, high_watermark=12) is None
    fetch(leader, C, 12)
    assert ask(leader, high_watermark=12) is not None


def test_D3_a_follower_joins_once_its_disk_has_where_the_log_starts() -> None:
    """It may lead next: what was deleted before it joined must not come back."""
    leader = leading((ME, B))
    fetch(leader, C, 30, starts_at=4)
    assert ask(leader, log_start_offset=5) is None
    fetch(leader, C, 30, starts_at=5)
    assert ask(leader, log_start_offset=5) is not None


def test_R5_a_follower_joins_under_the_registration_that_it_fetched_under() -> None:
    """KIP-903: it may have lost everything between two starts."""
    leader = leading((ME, B))
    fetch(leader, C, 30, epoch=100)
    for usable in ({ME: 99, B: 100, C: 101}, {ME: 99, B: 100}):
        assert ask(leader, usable=usable) is None
    assert not fetch(leader, C, 30, epoch=99), "a fetch of an older start comes late"
    assert fetch(leader, C, 3, epoch=101)
    assert ask(leader, usable={ME: 99, B: 100, C: 101}) is None, "what its older start had does not count"
    fetch(leader, C, 30, epoch=101)
    asked = ask(leader, usable={ME: 99, B: 100, C: 101})
    assert asked is not None
    assert asked.isr == {ME: 99, B: 100, C: 101}


def test_R1_a_follower_that_is_not_heard_of_leaves_and_one_that_keeps_up_stays() -> None:
    leader = leading()
    for second in range(1, 20):
        fetch(leader, B, second, now_s=float(second), end=second + 1)  # always one behind, never for long
        fetch(leader, B, second + 1, now_s=second + 0.5, end=second + 2)
    assert ask(leader, now_s=9.0) is None
    asked = ask(leader, now_s=20.0)
    assert asked is not None
    assert asked.isr == {ME: 99, B: 100}


def test_R5_a_follower_that_joins_far_behind_has_time_to_catch_up() -> None:
    """With too few in sync nothing more is committed, so it may join at once. It left again as quickly, and so on."""
    leader = leading((ME, B), min_isr=2)
    fetch(leader, B, 12, now_s=0.0)
    asked = ask(leader, 12, now_s=10.5)
    assert asked is not None
    assert set(asked.isr) == {ME}
    leader.changed((ME,), leader.replicas, 8, now_s=10.6)
    fetch(leader, B, 15, now_s=10.7)
    asked = ask(leader, 12, now_s=10.7)
    assert asked is not None
    assert set(asked.isr) == {ME, B}
    leader.changed((ME, B), leader.replicas, 9, now_s=11.0)
    fetch(leader, B, 18, now_s=11.1)
    assert ask(leader, 12, now_s=20.9) is None, "it leaves as soon as it has joined"
    asked = ask(leader, 12, now_s=21.1)
    assert asked is not None, "one that joined far behind stays for ever"
    assert set(asked.isr) == {ME}


def test_a_fetch_of_a_stranger_or_beyond_the_log_does_not_count() -> None:
    leader = leading()
    assert not fetch(leader, 9, 10)
    assert not fetch(leader, ME, 10)
    assert not fetch(leader, B, 31)
    assert leader.follower(9) is None


def test_R3_a_log_is_cut_where_the_epoch_ended_in_both() -> None:
    """Logs with the epochs (3 to 10), and here 5 from 8 on, where the leader has epoch 3 up to 10."""
    assert cut_to_follow(10, 8, 12) == 8
    assert cut_to_follow(6, 8, 12) == 6
    assert cut_to_follow(10, 8, 7) == 7


def test_R4_nothing_is_committed_while_another_may_be_elected_that_is_not_in_sync() -> None:
    """Who decided that had another min.insync.replicas: what is committed now would be lost with its election."""
    leader = leading((ME, B), min_isr=1, elr=(C,))
    fetch(leader, B, 30)
    assert leader.committed_end(30) == 0
    assert not leader.has_min_isr
    leader.changed((ME, B), (ME, B, C), 8, now_s=0.0, elr=())
    assert leader.committed_end(30) == 30
    leader.changed((ME, B), (ME, B, C), 9, now_s=0.0, elr=(C,))
    assert leader.committed_end(30) == 0


def test_R5_a_leader_asks_that_nobody_else_stays_eligible_where_enough_are_in_sync() -> None:
    leader = leading((ME, B), min_isr=2, elr=(C,))
    fetch(leader, B, 30)
    assert ask(leader) == WantedIsr(5, 7, {ME: 99, B: 100})
    assert ask(leader) is None, "one at a time"
    too_few = leading((ME, B), min_isr=3, elr=(C,))
    fetch(too_few, B, 30)
    assert ask(too_few) is None
