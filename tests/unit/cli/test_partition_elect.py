"""`semel partition elect` and `cancel`: what they say of partitions that need nothing, and of names beside --all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from semel.cli import partition
from semel.cli.common import ExitCode
from semel.cli.main import app
from semel.protocol.errors import ErrorCode, FatalError, SemelError
from semel.protocol.ids import TopicPartition

NEEDLESS = FatalError("it leads already", ErrorCode.ELECTION_NOT_NEEDED)
AWAY = FatalError("node 2 is not alive", ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)


def elect(monkeypatch: pytest.MonkeyPatch, outcomes: Sequence[SemelError | None], *arguments: str) -> Result:
    """Run the command for all partitions of a topic, which end as `outcomes` say."""
    places = [SimpleNamespace(partition=number) for number in range(len(outcomes))]
    topics = [SimpleNamespace(name="t", partitions=places)] if outcomes else []

    def elect_leaders(wanted: Sequence[TopicPartition], *, unclean: bool) -> dict[TopicPartition, SemelError | None]:
        assert unclean == ("--unclean" in arguments)
        return dict(zip(wanted, outcomes, strict=True))

    @contextmanager
    def opened(*_: object, **__: object) -> Iterator[Any]:
        yield SimpleNamespace(topics=lambda **_: topics, elect_leaders=elect_leaders)

    monkeypatch.setattr(partition, "open_admin", opened)
    return CliRunner().invoke(app, ["partition", "elect", "--all", *arguments])


@pytest.mark.parametrize(
    ("outcomes", "clean", "unclean"),
    [
        ([], "nothing to elect: there are no partitions", "nothing to elect: there are no partitions"),
        ([NEEDLESS], "nothing to elect: it is led by its preferred replica", "nothing to elect: it has a leader"),
        (
            [NEEDLESS] * 3,
            "nothing to elect: all 3 partitions are led by their preferred replica",
            "nothing to elect: all 3 partitions have a leader",
        ),
        ([None, None], "2 leaders elected", "2 leaders elected"),
        (
            [None, NEEDLESS],
            "1 leader elected; 1 other is led by its preferred replica already",
            "1 leader elected; 1 other has a leader already",
        ),
        (
            [None, None, NEEDLESS, NEEDLESS],
            "2 leaders elected; 2 others are led by their preferred replica already",
            "2 leaders elected; 2 others have a leader already",
        ),
    ],
)
def test_what_needs_no_election_is_said_beside_what_was_elected(
    monkeypatch: pytest.MonkeyPatch, outcomes: list[SemelError | None], clean: str, unclean: str
) -> None:
    shown = elect(monkeypatch, outcomes)
    assert (shown.exit_code, shown.stdout) == (0, f"{clean}\n")
    shown = elect(monkeypatch, outcomes, "--unclean", "--yes")
    assert (shown.exit_code, shown.stdout) == (0, f"{unclean}\n")


def test_what_could_not_be_elected_is_not_called_led(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = elect(monkeypatch, [AWAY, NEEDLESS])
    assert shown.exit_code == ExitCode.REFUSED
    assert shown.stdout == "0 leaders elected; 1 other is led by its preferred replica already\n"
    assert "node 2 is not alive" in shown.stderr


def test_partitions_that_are_refused_for_the_same_reason_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(number: int, why: str = "is not alive") -> SemelError:
        return FatalError(
            f"node 2, the preferred leader of t-{number}, {why}", ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        )

    shown = elect(monkeypatch, [*map(away, range(12)), away(12, "is not in sync")])
    assert shown.exit_code == ExitCode.REFUSED
    assert shown.stderr.splitlines() == [
        "semel: node 2, the preferred leader of t-0, is not alive; the same of 11 other partitions",
        "semel: node 2, the preferred leader of t-12, is not in sync",
        "semel: 13 partitions of 13 refused",
    ]


@pytest.mark.parametrize("command", ["elect", "cancel"])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name partitions (TOPIC:NUMBER) or topics, or give --all"),
        (["orders", "t:1", "--all"], "--all is all partitions, and orders, t:1 only these: give one of the two"),
    ],
)
def test_nothing_and_names_beside_all_are_two_mistakes(command: str, arguments: list[str], said: str) -> None:
    shown = CliRunner().invoke(app, ["partition", command, *arguments])
    assert (shown.exit_code, shown.stderr) == (ExitCode.USAGE, f"semel: {said}\n")
