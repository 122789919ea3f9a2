"""The room for requests (S2): its bounds hold, all of it comes back, and somebody can always continue."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from longer_runs import given

from semel.broker.listeners.kafka.request_memory import RequestMemory

HISTORIES = int(given("SEMEL_MODEL_EXAMPLES", "150"))
REQUEST_MAX = 100


@dataclass
class Peer:
    """A connection as the room sees it: requests that are received in doubling steps, and answered in order."""

    room: RequestMemory
    size: int = 0
    capacity: int = 0
    waits: bool = False
    complete: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.claim = self.room.enter(self, 0.0)

    @property
    def unfinished_bytes(self) -> int:
        return self.capacity

    @property
    def step(self) -> int:
        return min(self.size, max(2 * self.capacity, 4)) - self.capacity

    def room_made(self) -> None:
        assert self.waits
        self.waits = False
        self.capacity += self.step

    def describe_room(self, now: float) -> str:
        return str(self.claim.held)

    def leave_room_to_others(self) -> None:
        self.leave(0.0)

    def receive(self, now: float) -> None:
        """Continue by one step with the request that is being received, or with a new one."""
        if self.capacity == self.size > 0:
            self.complete.append(self.size)
            self.size = self.capacity = 0
        elif not self.waits:
            step = self.step
            if self.room.take(self.claim, step, now, last=self.capacity + step == self.size):
                self.capacity += step
            else:
                self.waits = True

    def answer(self, now: float) -> None:
        self.room.give_back(self.claim, self.complete.pop(0), now)

    def leave(self, now: float) -> None:
        self.room.leave(self.claim, now)
        self.size = self.capacity = 0
        self.waits = False
        self.complete.clear()


def check(room: RequestMemory, peers: list[Peer]) -> None:
    assert room.held == sum(peer.claim.held for peer in peers) <= room.bytes_max
    for peer in peers:
        assert peer.claim.held == peer.capacity + sum(peer.complete)
    assert room._lane_held <= REQUEST_MAX
    assert room.held - room._lane_held <= room.bytes_max - REQUEST_MAX
    waiting = [peer for peer in peers if peer.waits]
    assert room.waiting == len(waiting)
    if waiting:
        lane = room._lane
        assert lane is not None
        assert not any(peer.claim is lane and peer.claim._in_lane for peer in waiting), "it may always continue"
        free = room.bytes_max - REQUEST_MAX - (room.held - room._lane_held)
        assert all(peer.claim.held + 2 * peer.step > free for peer in waiting), "it has room, and was not told"


def finish(room: RequestMemory, peers: list[Peer]) -> None:
    """Nobody leaves and nothing new begins: each request that has begun to come must be received and answered."""
    while any(peer.size or peer.complete for peer in peers):
        able = [peer for peer in peers if peer.complete or (peer.size and not peer.waits)]
        assert able, "all room is held by requests that wait for room"
        for peer in able:
            if peer.size and not peer.waits:
                peer.receive(0.0)
            elif peer.complete:
                peer.answer(0.0)
            check(room, peers)


@pytest.mark.parametrize("bytes_max", [100, 130, 512, 2000])
def test_S2_room_is_bounded_comes_back_and_never_blocks_all(bytes_max: int) -> None:
    for seed in range(HISTORIES):
        chance = random.Random(seed)
        room = RequestMemory(bytes_max, REQUEST_MAX)
        peers = [Peer(room) for _ in range(chance.choice([2, 5, 30]))]
        try:
            for now in range(200):
                peer = chance.choice(peers)
                match chance.choice(["receive", "receive", "receive", "answer", "leave", "crowd"]):
                    case "receive":
                        if not peer.size:
                            peer.size = chance.randint(5, REQUEST_MAX)
                        peer.receive(now)
                    case "answer" if peer.complete:
                        peer.answer(now)
                    case "leave" if chance.random() < 0.2:
                        peer.leave(now)
                        peers[peers.index(peer)] = Peer(room)
                    case "crowd" if chance.random() < 0.1:
                        for claim in room.crowding(now, 50.0):
                            claim.owner.leave_room_to_others()
                check(room, peers)
            if chance.random() < 0.5:
                finish(room, peers)
            else:
                for peer in peers:
                    peer.leave(0.0)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, bytes_max {bytes_max}: {error}") from error
        assert (room.held, room.waiting, room._lane, room._lane_held) == (0, 0, None, 0)
        assert not room.claims()
