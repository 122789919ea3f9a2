"""The table of what can happen to a world: in which worlds, how often, for how long, and how a story says it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from simulation.failover import AFTER_RESTART, fail_over
from simulation.node_ends import (
    LOSES_POWER,
    crash_at,
    cut_after_sync,
    cut_at_answer,
    cut_at_question,
    cut_at_retry,
    cut_in_start,
    end_in_cleaning,
    kill,
    kill_all,
    kill_in,
    stop,
    stop_when_open,
)
from simulation.successions import depose, leave_behind, short_reign, take_deletion_back
from simulation.troubles import (
    abort_open,
    answer_late,
    break_connections,
    cut,
    database_fails,
    failing_disk,
    full_disk,
    full_disk_at_call,
    isolate,
    jump_clock,
    kill_client,
    lose_answers,
    lose_answers_of_calls,
    move_leaders,
    node_without_database,
    pause_client,
    pause_node,
    replace_client,
    slow_disk,
    slow_network,
)

if TYPE_CHECKING:
    from simulation.nemesis import Fault, Stage


class Worlds(Enum):
    """In which worlds a kind of fault comes."""

    OF_ONE = "with one node"
    OF_SEVERAL = "with several nodes"
    OF_COORDINATORS = "with several nodes, and transactions and groups"
    ALL = "all"
    ASIDE = "drawn by itself, beside the others"


@dataclass(frozen=True, slots=True)
class Kind:
    text: str
    weight: float
    begin: Callable[[Stage, Fault], None]
    needs_client: bool = False
    """Whether the target is a client; where it is another thing, `targets` has them."""
    longest_s: float = 3.0
    amount: tuple[int, int] = (0, 0)
    targets: tuple[str, ...] = ()
    worlds: Worlds = Worlds.ALL
    needs_other_node: bool = False
    """Whether the target is another node."""
    is_of_all: bool = False
    """Whether all nodes die of it."""
    is_of_node: bool = True
    """Whether it happens to one node."""


END_IN_CLEANING: Final = "end in a cleaning"
LATE_ANSWERS: Final = "late answers"
LOST_ANSWERS: Final = "lost answers of calls"
SHORT_REIGN: Final = "short reign"
LEFT_BEHIND: Final = "replica left behind"
DEPOSED: Final = "deposed leader"
DELETION: Final = "deletion taken back"


KINDS: dict[str, Kind] = {
    "kill": Kind("{node} is killed, and started again after {for_s:.2f} s", 3, kill),
    "power cut": Kind("{node} loses power, and is started again after {for_s:.2f} s", 3, kill),
    "stop": Kind("{node} is stopped, and started again after {for_s:.2f} s", 2, stop, amount=(0, 2_000)),
    "stop with transactions open": Kind(
        "{node} is stopped when a log has open transactions that began in another order than their producers, and "
        "started again after {for_s:.2f} s",
        2,
        stop_when_open,
        amount=(0, 200),
        worlds=Worlds.OF_ONE,
    ),
    "kill in steps": Kind("{node} is killed {amount} steps later, for {for_s:.2f} s", 4, kill_in, amount=(1, 400)),
    "power cut in steps": Kind(
        "{node} loses power {amount} steps later, for {for_s:.2f} s", 4, kill_in, amount=(1, 400)
    ),
    "kill at a write": Kind(
        "{node} is killed in its write {amount} from here, for {for_s:.2f} s", 3, crash_at, amount=(1, 60)
    ),
    "power cut at a write": Kind(
        "{node} loses power in its write {amount} from here, for {for_s:.2f} s", 3, crash_at, amount=(1, 60)
    ),
    "power cut in the start": Kind(
        "{node} loses power, is started again after {for_s:.2f} s, and loses it in write {amount}, and in two more "
        "starts",
        2,
        cut_in_start,
        amount=(1, 60),
    ),
    "power cut at a retry": Kind(
        "the next message of {target} has no answer, as the connection breaks, the disk is slow, and {node} loses "
        "power when its message {amount} after that to {target} has left, for {for_s:.2f} s",
        3,
        cut_at_retry,
        True,
        amount=(1, 8),
    ),
    "power cut at a call's answer": Kind(
        "{node} loses power when its answer {amount} from here to {target} has left, for {for_s:.2f} s",
        4,
        cut_at_answer,
        amount=(1, 6),
        targets=(
            "EndTransaction",
            "CommitSharedTransaction",
            "CommitOffsets",
            "InitProducerId",
            "OpenSharedTransaction",
            "DescribeSharedTransaction",
            "FetchOffsets",
        ),
        worlds=Worlds.OF_ONE,
    ),
    "power cut at a question": Kind(
        "from the next {target} on the disk is slow, and the node and who commits lose power when somebody else "
        "learns of a commit, for {for_s:.2f} s",
        4,
        cut_at_question,
        targets=("EndTransaction", "CommitSharedTransaction"),
        worlds=Worlds.OF_ONE,
    ),
    "power cut after a sync": Kind(
        "from the next {target} on the disk is slow, and the node loses power right after a sync during which "
        "another came, {amount} times, for {for_s:.2f} s; what was not synced is gone",
        6,
        cut_after_sync,
        amount=(1, 3),
        targets=("CommitOffsets", "CommitOffsets", "EndTransaction"),
        worlds=Worlds.OF_ONE,
    ),
    "power cut at an answer": Kind(
        "{node} loses power when its message {amount} from here has left, for {for_s:.2f} s",
        5,
        cut_at_answer,
        amount=(1, 40),
    ),
    "cut": Kind("{target} and {node} are cut off from each other for {for_s:.2f} s", 2, cut, True, 8.0, (0, 1)),
    "cut towards node": Kind("nothing of {target} reaches {node} for {for_s:.2f} s", 2, cut, True, 8.0, (0, 1)),
    "cut towards client": Kind("nothing of {node} reaches {target} for {for_s:.2f} s", 2, cut, True, 8.0, (0, 1)),
    "break connections": Kind("the connections of {target} break", 3, break_connections, True),
    "pause node": Kind("{node} is paused for {for_s:.2f} s", 1, pause_node, longest_s=8.0),
    "pause client": Kind("{target} is paused for {for_s:.2f} s", 2, pause_client, True, 15.0, is_of_node=False),
    "replace client": Kind(
        "{target} is paused for {for_s:.2f} s, and another is started in its place",
        2,
        replace_client,
        True,
        10.0,
        is_of_node=False,
    ),
    "kill client": Kind("{target} is killed", 3, kill_client, True, is_of_node=False),
    "abort": Kind(
        "an operator aborts the transaction of {target}",
        3,
        abort_open,
        True,
        is_of_node=False,
        worlds=Worlds.OF_ONE,
    ),
    "clock": Kind("{node}'s clock jumps by {amount} ms", 1, jump_clock, amount=(-20_000, 20_000)),
    "slow disk": Kind(
        "each work of {node}'s disk lasts at most {amount} ms for {for_s:.2f} s", 1, slow_disk, amount=(50, 1500)
    ),
    "slow network": Kind(
        "messages are delayed by at most {amount} ms for {for_s:.2f} s",
        2,
        slow_network,
        amount=(100, 4000),
        is_of_node=False,
    ),
    "failed sync": Kind("a sync of {node} fails", 0.7, failing_disk),
    "failed write": Kind("a write of {node} fails", 0.7, failing_disk),
    "full disk": Kind(
        "{node}'s disk has {amount} bytes left for {for_s:.2f} s", 1.5, full_disk, longest_s=8.0, amount=(0, 1500)
    ),
    "full disk at a call": Kind(
        "{node}'s disk has {amount} bytes left for {for_s:.2f} s from the next {target} on",
        1,
        full_disk_at_call,
        amount=(200, 2000),
        targets=("EndTransaction", "CommitSharedTransaction", "OpenSharedTransaction", "CommitOffsets"),
        worlds=Worlds.OF_ONE,
    ),
    "database away": Kind("the database is away for {for_s:.2f} s", 1, database_fails, longest_s=6.0, is_of_node=False),
    "database loses answers": Kind(
        "the database loses answers for {for_s:.2f} s", 1, database_fails, longest_s=6.0, is_of_node=False
    ),
    "lost answers of the database": Kind(
        "the database takes the next {amount} changes, and its answers are lost",
        3,
        lose_answers,
        amount=(1, 4),
        is_of_node=False,
    ),
    "fail-over of the database": Kind(
        "the database's standby gets no further, and takes over after {for_s:.2f} s: what was committed in between is "
        "gone, and an operator accepts that {amount} ms after a start was refused",
        3,
        fail_over,
        longest_s=8.0,
        amount=(0, 2_000),
        worlds=Worlds.OF_ONE,
        is_of_node=False,
    ),
    AFTER_RESTART: Kind(
        "the database's standby gets no further, the node and all clients are killed and started again, the standby "
        "takes over {for_s:.2f} s after they have begun: what was committed in between is gone, an operator accepts "
        "that {amount} ms after a start was refused, and every second client is killed again",
        2,
        fail_over,
        longest_s=8.0,
        amount=(0, 2_000),
        worlds=Worlds.OF_ONE,
        is_of_node=False,
    ),
    "kill all": Kind(
        "all nodes are killed, and started again after {for_s:.2f} s, one after the other",
        0.7,
        kill_all,
        amount=(0, 2),
        worlds=Worlds.OF_SEVERAL,
        is_of_all=True,
        is_of_node=False,
    ),
    "power cut of all": Kind(
        "all nodes lose power, and are started again after {for_s:.2f} s, one after the other",
        1,
        kill_all,
        amount=(0, 2),
        worlds=Worlds.OF_SEVERAL,
        is_of_all=True,
        is_of_node=False,
    ),
    "cut of nodes": Kind(
        "{node} and {target} are cut off from each other for {for_s:.2f} s",
        3,
        cut,
        longest_s=8.0,
        amount=(0, 1),
        worlds=Worlds.OF_SEVERAL,
        needs_other_node=True,
    ),
    "cut towards other node": Kind(
        "nothing of {node} reaches {target} for {for_s:.2f} s",
        3,
        cut,
        longest_s=8.0,
        amount=(0, 1),
        worlds=Worlds.OF_SEVERAL,
        needs_other_node=True,
    ),
    "isolated node": Kind(
        "{node} is cut off from all other nodes for {for_s:.2f} s",
        3,
        isolate,
        longest_s=8.0,
        worlds=Worlds.OF_SEVERAL,
    ),
    "leaders move": Kind(
        "other leaders of {target} are elected by way of {node}, {amount} times in {for_s:.2f} s",
        8,
        move_leaders,
        amount=(1, 5),
        targets=("__transaction_state", "__consumer_offsets", "in", "out"),
        worlds=Worlds.OF_COORDINATORS,
    ),
    LATE_ANSWERS: Kind(
        "what nodes answer each other comes {amount} ms later for {for_s:.2f} s, but for markers and fetches",
        0,
        answer_late,
        longest_s=8.0,
        amount=(50, 2_500),
        worlds=Worlds.ASIDE,
        is_of_node=False,
    ),
    LOST_ANSWERS: Kind(
        "the next answers to {target} are lost for {for_s:.2f} s, {amount} at most, as their connections break",
        0,
        lose_answers_of_calls,
        longest_s=5.0,
        targets=("CommitSharedTransaction", "EndTransaction", "EndTransaction", "OpenSharedTransaction"),
        worlds=Worlds.ASIDE,
        is_of_node=False,
    ),
    END_IN_CLEANING: Kind(
        "{node} {target} in write {amount} from the beginning of its next cleaning, for {for_s:.2f} s",
        0,
        end_in_cleaning,
        targets=(LOSES_POWER, "is killed"),
        worlds=Worlds.ASIDE,
    ),
    SHORT_REIGN: Kind(
        "when the third replica of {target}-0 has more than the second, its leader is killed, and the second when it "
        "leads and has written; they are started again after {for_s:.2f} s, one after the other",
        0,
        short_reign,
        worlds=Worlds.ASIDE,
        is_of_node=False,
    ),
    LEFT_BEHIND: Kind(
        "the third replica of {target}-0 is cut off until it is out of sync, and its leader is killed when the second "
        "does not know of all that is committed, and started again after {for_s:.2f} s",
        0,
        leave_behind,
        worlds=Worlds.ASIDE,
        is_of_node=False,
    ),
    DEPOSED: Kind(
        "the leader of {target}-0 reaches neither other nodes nor the database for {for_s:.2f} s",
        0,
        depose,
        worlds=Worlds.ASIDE,
        is_of_node=False,
    ),
    DELETION: Kind(
        "the disks of {target}-0's followers are slow, and when a deletion of its records is answered, all nodes "
        "lose power; they are started again after {for_s:.2f} s, one after the other, who led it last",
        0,
        take_deletion_back,
        worlds=Worlds.ASIDE,
        is_of_node=False,
    ),
    "node without database": Kind(
        "{node} does not reach the database for {for_s:.2f} s",
        3,
        node_without_database,
        longest_s=8.0,
        worlds=Worlds.OF_SEVERAL,
    ),
}
