"""What the leader of a partition knows of its replicas, and how far the partition is committed (R1, R2, R4, R5).

The rules are Kafka's, as KIP-966's formal description states them. An in-sync set that was proposed and may or may not
have been accepted counts with the one that is known: the two together are the maximal in-sync set, and only what all
of its members have is committed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from semel.broker.logs.proofs import FetchRounds, Proof

NOT_HEARD: Final = -1
"""The broker epoch of a follower that has not fetched in this leader epoch yet."""


@dataclass(slots=True)
class Follower:
    """What a leader knows of one follower, from the fetches of its own epoch alone.

    end_offset:   where it has fetched last, which is the end of what it has (on its disk, where that counts).
    broker_epoch: the registration that it fetched under (KIP-903).
    caught_up_s:  when it last had all that the leader had, or came in sync.
    """

    end_offset: int
    broker_epoch: int
    caught_up_s: float
    fetched_s: float
    leader_end_offset: int
    """The end of the leader's log when it fetched last."""
    log_start_offset: int = 0
    """Where its disk said then that its own log starts."""
    told: tuple[int, int] = (-1, -1)
    """The high watermark and the log start that it was told last."""
    is_silent: bool = False
    """Whether a proof has waited for it in vain, and it has not fetched since."""


@dataclass(frozen=True, slots=True)
class WantedIsr:
    """An in-sync set that a leader asks for in place of that of a partition epoch.

    isr: each member's broker epoch: the one that it has fetched under, or is registered with if it has not yet
    """

    leader_epoch: int
    partition_epoch: int
    isr: Mapping[int, int]


class LeaderState:
    """One node's leadership of a partition, from the moment it began to the end of its epoch.

    begin_offset: the end of the leader's log when it began to lead.
    """

    __slots__ = (
        "_followers",
        "_proofs",
        "_proposed",
        "begin_offset",
        "elr",
        "is_alone",
        "isr",
        "leader_epoch",
        "min_isr",
        "node_id",
        "partition_epoch",
        "replicas",
        "replication_factor",
    )

    def __init__(
        self,
        node_id: int,
        *,
        leader_epoch: int,
        partition_epoch: int,
        replicas: Collection[int],
        isr: Collection[int],
        min_isr: int,
        begin_offset: int,
        now_s: float,
        elr: Collection[int] = (),
        replication_factor: int | None = None,
    ) -> None:
        """`min_isr`: min.insync.replicas, which counts up to the number of replicas (KIP-966).

        elr: replicas out of sync that may still be elected, or may be eligible again (`last_known_elr`)
        replication_factor: where it is another than the number of `replicas`: they are being moved
        """
        assert node_id in isr, "a leader is in sync with itself"
        self.node_id = node_id
        self.leader_epoch = leader_epoch
        self.partition_epoch = partition_epoch
        self.replicas = tuple(replicas)
        self.isr = tuple(isr)
        self.elr = tuple(elr)
        self.replication_factor = len(self.replicas) if replication_factor is None else replication_factor
        self.begin_offset = begin_offset
        self.min_isr = min_isr
        self._followers = {
            node: Follower(0, NOT_HEARD, now_s, now_s, begin_offset) for node in self.isr if node != node_id
        }
        self._proposed: tuple[int, ...] | None = None
        self._proofs: list[Proof] = []
        self.is_alone = self.replicas == (node_id,)
        """Whether it asks nobody what is committed: it is the only replica."""

    @classmethod
    def alone(cls, leader_epoch: int, begin_offset: int, *, node_id: int = 0, min_isr: int = 1) -> LeaderState:
        """Return the leadership of the only replica."""
        return cls(
            node_id, leader_epoch=leader_epoch, partition_epoch=0, replicas=(node_id,), isr=(node_id,),
            min_isr=min_isr, begin_offset=begin_offset, now_s=0.0,
        )  # fmt: skip

    @property
    def maximal_isr(self) -> frozenset[int]:
        """The in-sync set with all that may have been accepted besides."""
        return frozenset(self.isr).union(self._proposed or ())

    @property
    def is_asking(self) -> bool:
        """Whether a proposal is on its way, or may have been accepted unheard."""
        return self._proposed is not None

    @property
    def has_min_isr(self) -> bool:
        """Whether enough replicas are in sync for anything to be committed (R2).

        Never while another may be elected that is not in sync: it would lack what is committed now (R4). The node
        that decided on that may have known another min.insync.replicas than this leader does.
        """
        return not self.elr and self._are_enough

    @property
    def effective_min_isr(self) -> int:
        """How many replicas have to be in sync: min.insync.replicas, or all where there are fewer (KIP-966)."""
        return min(self.min_isr, self.replication_factor)

    @property
    def lacks_replicas(self) -> bool:
        """Whether fewer are in sync than acks=all asks for (R2)."""
        return not self._are_enough

    @property
    def _are_enough(self) -> bool:
        return len(self.isr) >= self.effective_min_isr

    def committed_end(self, own_end: int) -> int:
        """Return up to where all of the maximal in-sync set have the log, 0 while too few are in sync (R1, R2).

        own_end: what counts of the leader's own log, which is what a power cut leaves where that is promised
        """
        if self.is_alone:
            return own_end
        if not self.has_min_isr:
            return 0
        end = own_end
        for node in self.maximal_isr:
            if node != self.node_id:
                follower = self._followers.get(node)
                end = min(end, 0 if follower is None else follower.end_offset)
        return end

    def deleted_below(self, own_start: int) -> int:
        """Return up to where all that may be elected have deleted their records, on their disks (KIP-107).

        own_start: of the leader
        """
        start = own_start
        for node in self.electors.union(self.elr):
            follower = self._followers.get(node)
            start = min(start, 0 if follower is None else follower.log_start_offset)
        return start

    def fetched(
        self,
        node: int,
        broker_epoch: int,
        offset: int,
        *,
        now_s: float,
        log_end_offset: int,
        log_start_offset: int,
        starts_at: int = 0,
    ) -> bool:
        """Take note that a follower has all below `offset`: its log was found not to diverge (KAFKA-13141).

        starts_at: where the follower's disk says that its log starts; the other two are of the leader's log
        Returns False for one that is no replica, or is of an older start of that node, whose word does not count.
        """
        if node not in self.replicas or node == self.node_id or not log_start_offset <= offset <= log_end_offset:
            return False
        known = self._followers.get(node)
        if known is None or broker_epoch > known.broker_epoch:
            # What an earlier start of the node had says nothing of what this one has.
            caught_up_s = known.caught_up_s if known is not None and known.broker_epoch == NOT_HEARD else float("-inf")
            known = self._followers[node] = Follower(offset, broker_epoch, caught_up_s, now_s, log_end_offset)
        elif broker_epoch < known.broker_epoch:
            return False
        if offset >= log_end_offset:
            known.caught_up_s = now_s
        elif offset >= known.leader_end_offset:
            known.caught_up_s = max(known.caught_up_s, known.fetched_s)
        known.end_offset = offset
        known.log_start_offset = starts_at
        known.fetched_s = now_s
        known.is_silent = False
        known.leader_end_offset = log_end_offset
        return True

    def wanted_isr(
        self,
        high_watermark: int,
        *,
        now_s: float,
        lag_max_s: float,
        log_start_offset: int,
        log_end_offset: int,
        usable: Mapping[int, int],
        full: Collection[int] = (),
    ) -> WantedIsr | None:
        """Return the in-sync set to ask for now, or None where it is right, or was asked for and is not settled.

        A follower joins once it has all that is committed and all from before this epoch, and nothing that was deleted,
        in a fetch of its present start, while it is `usable`: a node that is registered under that broker epoch, not
        fenced, and stays. It then has `lag_max_s` to get the rest, too. A node in `full`, whose disk refuses producers,
        joins only where too few are in sync: it would leave again as soon as the rest of its disk is full, and
        producers would wait for that. One that had not all for `lag_max_s` leaves. The same set is asked for where it
        is enough by the setting of now, and others are still eligible: they are not any more once the answer is there.
        """
        if self.is_asking:
            return None
        wanted = [node for node in self.isr if not self._lags(node, now_s, lag_max_s, log_end_offset)]
        enough = max(high_watermark, self.begin_offset)
        for node in self.replicas:
            follower = self._followers.get(node)
            if (
                node not in self.isr
                and follower is not None
                and follower.end_offset >= enough
                and follower.log_start_offset >= log_start_offset
                and usable.get(node) == follower.broker_epoch
                and not (node in full and self._are_enough)
            ):
                wanted.append(node)
        if set(wanted) == set(self.isr) and not (self.elr and self._are_enough):
            return None
        self._proposed = tuple(wanted)
        return WantedIsr(
            self.leader_epoch, self.partition_epoch, {node: self._epoch_of(node, usable) for node in wanted}
        )

    def refused(self) -> None:
        """Take note that a proposal was refused, for sure: it has changed nothing and never will."""
        self._proposed = None

    def changed(
        self,
        isr: Collection[int],
        replicas: Collection[int],
        partition_epoch: int,
        *,
        now_s: float,
        elr: Collection[int] = (),
        replication_factor: int | None = None,
    ) -> None:
        """Take over what the metadata says within this epoch. A proposal made for an earlier state is settled by it."""
        if partition_epoch <= self.partition_epoch:
            return
        assert self.node_id in isr, "a leader is in sync with itself"
        for node in set(isr).difference(self.isr):
            # Where too few are in sync, nothing more is committed, and one that lags far behind may join at once. It
            # would leave again as quickly, and so on, and producers would be refused each time.
            if (joined := self._followers.get(node)) is not None:
                joined.caught_up_s = now_s
        self.isr, self.elr, self.replicas = tuple(isr), tuple(elr), tuple(replicas)
        self.replication_factor = len(self.replicas) if replication_factor is None else replication_factor
        self.partition_epoch = partition_epoch
        self._proposed = None
        for node in self.isr:
            if node != self.node_id and node not in self._followers:
                self._followers[node] = Follower(0, NOT_HEARD, now_s, now_s, self.begin_offset)
        for node in list(self._followers):
            if node not in self.replicas:
                del self._followers[node]
        self.is_alone = self.replicas == (self.node_id,)

    def follower(self, node: int) -> Follower | None:
        return self._followers.get(node)

    def may_be_throttled(self, node: int, offset: int, high_watermark: int) -> bool:
        """Say whether nothing is held up by a follower that gets nothing from `offset` on for now (KIP-73).

        One that has all that is committed is about to be in sync, so it is served, too (R1).
        """
        return offset < high_watermark and node not in self.maximal_isr

    # --- Showing that no other node leads (R9) ------------------------------------------------------------------------

    @property
    def electors(self) -> frozenset[int]:
        """All others that may be elected, as far as is known here: they are asked, and know if one of them was."""
        return self.maximal_isr - {self.node_id}

    @property
    def has_silent_elector(self) -> bool:
        """Whether asking would be in vain, as the last time."""
        return any((known := self._followers.get(node)) is None or known.is_silent for node in self.electors)

    def prove(self, proof: Proof) -> None:
        """Wait for those that a proof asks. Until they are heard of, or it is given up, their fetches don't wait."""
        self._proofs.append(proof)

    def give_up(self, proof: Proof) -> None:
        """Wait for a proof no more, and note who has not been heard of."""
        if proof in self._proofs:
            self._proofs.remove(proof)
            for node in proof.missing:
                known = self._followers.get(node)
                if known is not None:
                    known.is_silent = True

    def awaits(self, node: int) -> bool:
        """Say whether a proof waits for a fetch of this follower."""
        return any(node in proof.missing for proof in self._proofs)

    def heard(self, node: int, told: int, rounds: FetchRounds) -> None:
        """Take note that a follower in this epoch has fetched with the number that it was told last."""
        for proof in tuple(self._proofs):
            if rounds.is_since(told, proof.begun):
                proof.missing.discard(node)
                if not proof.missing:
                    self._proofs.remove(proof)
                    proof.done()

    def _epoch_of(self, node: int, usable: Mapping[int, int]) -> int:
        follower = self._followers.get(node)
        heard = follower is not None and follower.broker_epoch != NOT_HEARD
        return follower.broker_epoch if follower is not None and heard else usable.get(node, NOT_HEARD)

    def _lags(self, node: int, now_s: float, lag_max_s: float, log_end_offset: int) -> bool:
        if node == self.node_id:
            return False
        follower = self._followers.get(node)
        if follower is None:
            return True  # it is in sync by another's word, and has not been heard of in this epoch
        return follower.end_offset < log_end_offset and now_s - follower.caught_up_s > lag_max_s
