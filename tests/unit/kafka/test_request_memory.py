"""Who gets room for requests, who waits, and who has to go (S2)."""

from __future__ import annotations

from dataclasses import dataclass

from semel.broker.listeners.kafka.request_memory import MemoryClaim, RequestMemory


@dataclass
class Owner:
    """A connection that receives one request."""

    unfinished_bytes: int = 0
    told: int = 0

    def room_made(self) -> None:
        self.told += 1

    def describe_room(self, now: float) -> str:
        return ""

    def leave_room_to_others(self) -> None: ...


def claims(room: RequestMemory, count: int) -> list[MemoryClaim]:
    return [room.enter(Owner(), 0.0) for _ in range(count)]


def test_S2_a_connection_holds_no_more_than_is_free_beside_it() -> None:
    room = RequestMemory(500, 100)
    greedy, lane, newcomer = claims(room, 3)
    assert room.take(greedy, 200, 0.0, last=False)
    assert room.take(lane, 100, 0.0, last=False), "200 are free, of which it leaves as many as it takes"
    assert not room._lane_held
    assert room.take(greedy, 1, 0.0, last=True), "the lane is free"
    assert room._lane_held == 1
    assert not room.take(lane, 1, 0.0, last=False)
    assert room.take(newcomer, 50, 0.0, last=False), "a request for little finds it"


def test_S2_those_who_need_little_go_before_those_who_need_much() -> None:
    room = RequestMemory(200, 100)
    lane, first, large, small = claims(room, 4)
    assert room.take(first, 50, 0.0, last=True)
    assert room.take(lane, 100, 0.0, last=True)
    assert not room.take(large, 60, 1.0, last=True)
    assert not room.take(small, 30, 2.0, last=True)
    room.give_back(first, 50, 3.0)
    assert (small.held, large.held) == (30, 0)
    room.give_back(lane, 100, 4.0)
    assert large.held == 60, "and the one that has waited longest gets the lane"
    assert isinstance(large.owner, Owner)
    assert large.owner.told == 1


def test_S2_the_lane_is_one_requests_and_not_one_connections() -> None:
    """Otherwise one connection keeps it, request after request."""
    room = RequestMemory(100, 100)
    mine, other = claims(room, 2)
    assert room.take(mine, 30, 0.0, last=True)
    assert not room.take(mine, 30, 1.0, last=True)
    assert not room.take(other, 30, 0.5, last=True)
    room.give_back(mine, 30, 2.0)
    assert (mine.held, other.held) == (30, 0), "the oldest, which is its own next one"
    room.give_back(mine, 30, 3.0)
    assert (mine.held, other.held) == (0, 30)


def test_S2_who_holds_most_and_stands_still_goes_first_when_others_have_waited_too_long() -> None:
    room = RequestMemory(300, 100)
    lane, still, less, busy, late = claims(room, 5)
    for each, size in ((still, 60), (less, 40), (busy, 20), (lane, 100)):
        assert room.take(each, size, 0.0, last=True)
        assert isinstance(each.owner, Owner)
        each.owner.unfinished_bytes = 0 if each is lane else size
    busy.moved_at = 9.0
    assert not room.take(late, 55, 2.0, last=True)
    assert room.crowding(11.0, 10.0) == [], "nobody has waited for ten seconds"
    assert room.crowding(12.0, 10.0) == [still, less], (
        "nobody goes whose requests are only being answered, or who moves"
    )
    room.leave(still, 12.0)
    assert late.held == 55 or room.waiting == 1
    room.leave(less, 12.0)
    assert late.held == 55


def test_S2_those_who_left_while_they_waited_are_forgotten() -> None:
    room = RequestMemory(100, 100)
    (lane,) = claims(room, 1)
    assert room.take(lane, 100, 0.0, last=True)
    for _ in range(1000):
        (gone,) = claims(room, 1)
        assert not room.take(gone, 10, 0.0, last=True)
        room.leave(gone, 0.0)
    assert not room.take(*claims(room, 1), 10, 0.0, last=True)
    assert len(room._smallest) < 200
