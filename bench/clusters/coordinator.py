"""How soon transactions continue when the node of their coordinator is killed, with many transactional ids known."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import cycle

import confluent_kafka

from clusters.calls import Calls
from clusters.clients import ASK_EVERY_S, Background, quiet
from clusters.losses import victims
from clusters.peers import NODES, Cluster, Pair
from clusters.report import ClusterRow, Goal, Scale, by_peer
from semel.protocol.errors import ErrorCode
from semel.protocol.kafka.api import ApiKey

OF_TRANSACTIONS = 1
"""The type of a coordinator's key."""
FIND_VERSION, INIT_VERSION = 4, 4
FOUND_AT_ONCE = 1_000
THREADS_A_NODE = 8
TRANSACTION_TIMEOUT_MS = 60_000
ANSWER_S = 10.0
WITHIN_S = 120.0
RETRIED = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)


def coordinators(calls: Calls, ids: Sequence[str]) -> dict[str, int]:
    """Return the node that coordinates each id, of those that have one now."""
    found: dict[str, int] = {}
    for begin in range(0, len(ids), FOUND_AT_ONCE):
        keys = ids[begin : begin + FOUND_AT_ONCE]
        answer = calls.call(ApiKey.FIND_COORDINATOR, FIND_VERSION, key_type=OF_TRANSACTIONS, coordinator_keys=keys)
        found |= {one.key: one.node_id for one in answer.coordinators if not one.error_code}
    return found


def register(cluster: Cluster, ids: Sequence[str]) -> None:
    """Have the coordinators know these ids, as InitProducerId does."""
    with closing(Calls(cluster.address, ANSWER_S)) as calls:
        cluster.wait_until(lambda: len(coordinators(calls, ids)) == len(ids), "all ids have a coordinator")
        found = coordinators(calls, ids)
    shares: list[tuple[int, list[str]]] = []
    for node in NODES:
        own = [id_ for id_, coordinator in found.items() if coordinator == node]
        shares += [(node, own[n::THREADS_A_NODE]) for n in range(THREADS_A_NODE)]

    def register_share(share: tuple[int, list[str]]) -> None:
        node, own = share
        with closing(Calls(cluster.addresses[node], ANSWER_S)) as calls:
            for id_ in own:
                deadline = time.monotonic() + WITHIN_S
                while (error := init(calls, id_)) is not ErrorCode.NONE:
                    if error not in RETRIED or time.monotonic() > deadline:
                        raise RuntimeError(f"{cluster.name}: InitProducerId of {id_}: {error.name}")
                    time.sleep(ASK_EVERY_S)

    with ThreadPoolExecutor(len(shares)) as pool:
        for _ in pool.map(register_share, shares):
            pass


def init(calls: Calls, id_: str) -> ErrorCode:
    answer = calls.call(
        ApiKey.INIT_PRODUCER_ID,
        INIT_VERSION,
        transactional_id=id_,
        transaction_timeout=TRANSACTION_TIMEOUT_MS,
        producer_id=-1,
        producer_epoch=-1,
    )
    return ErrorCode(answer.error_code)


class Committing(Background):
    """One librdkafka producer that commits one transaction after the other, and retries what may be retried."""

    def __init__(self, cluster: Cluster, id_: str, topic: str) -> None:
        super().__init__()
        self._producer = confluent_kafka.Producer(quiet(cluster, transactional_id=id_, linger_ms=0))
        self._topic = topic
        self._is_known = False
        self.commits: list[tuple[float, float]] = []
        """When each began, and when it was committed."""

    def once(self) -> None:
        if not self._is_known:
            self._producer.init_transactions(WITHIN_S)
            self._is_known = True
        began = time.perf_counter()
        self._producer.begin_transaction()
        try:
            self._producer.produce(self._topic, b"v" * 100, partition=0)
            self._retried(self._producer.commit_transaction)
        except confluent_kafka.KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self._retried(self._producer.abort_transaction)
            return
        self.commits.append((began, time.perf_counter()))

    @staticmethod
    def _retried(call: Callable[[float], None]) -> None:
        deadline = time.monotonic() + WITHIN_S
        while True:
            try:
                call(WITHIN_S)
                return
            except confluent_kafka.KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise

    def first_after(self, moment: float) -> float:
        """Return when the first transaction that began after a moment was committed; waits for it."""
        deadline = time.monotonic() + WITHIN_S
        while True:
            found = [done for began, done in self.commits if began > moment]
            if found:
                return found[0]
            if self._error is not None:
                raise self._error
            if time.monotonic() > deadline:
                raise TimeoutError("nothing was committed")
            time.sleep(ASK_EVERY_S)


def wait_answers_again(cluster: Cluster, id_: str, victim: int) -> tuple[float, float]:
    """Return when another node was named as the coordinator, and when it answered for an id that it took over."""
    others = {node: Calls(cluster.addresses[node], ANSWER_S) for node in NODES if node != victim}
    named = 0.0
    deadline = time.monotonic() + WITHIN_S
    try:
        for asked in cycle(others.values()):
            with suppress(OSError):
                coordinator = coordinators(asked, [id_]).get(id_, victim)
                if coordinator in others:
                    named = named or time.perf_counter()
                    if init(others[coordinator], id_) is ErrorCode.NONE:
                        return named, time.perf_counter()
            if time.monotonic() > deadline:
                break
            time.sleep(ASK_EVERY_S)
    finally:
        for calls in others.values():
            calls.close()
    raise TimeoutError(f"{cluster.name}: no coordinator answers for {id_}")


def coordinator(pair: Pair, kind: str, scale: Scale) -> list[ClusterRow]:
    """SIGKILL of a coordinator's node, to the next commit of its producer, and to its successor's first answer."""
    commit, named, answered = by_peer([*pair]), by_peer([*pair]), by_peer([*pair])
    ids = [f"bench-{number}" for number in range(max(scale.ids, len(NODES) * 20))]
    for cluster in pair.values():
        register(cluster, ids)
    for victim, name, cluster in victims(pair, scale):
        with closing(Calls(cluster.address, ANSWER_S)) as calls:
            own = [id_ for id_, node in coordinators(calls, ids).items() if node == victim]
        topic = f"committed-{len(commit[name])}"
        cluster.new_topic(topic, [NODES[victim % len(NODES)]])
        with Committing(cluster, own[0], topic) as producer:
            producer.first_after(0.0)
            begin = time.perf_counter()
            cluster.kill(victim)
            gone = time.perf_counter()
            named_at, answered_at = wait_answers_again(cluster, own[1], victim)
            named[name].append(named_at - begin)
            answered[name].append(answered_at - named_at)
            commit[name].append(producer.first_after(gone) - begin)
        cluster.start(victim)
        cluster.wait_whole()
    label = f"SIGKILL of a coordinator's node, {len(ids):,} transactional ids"
    return [
        ClusterRow(f"{label}: next commit, librdkafka's defaults", kind, "s", commit, True),
        ClusterRow(f"{label}: another node is named", kind, "s", named, True),
        ClusterRow(f"{label}: from then until it answers", kind, "s", answered, True, goal=Goal(1.0, 2.0, "s")),
    ]
