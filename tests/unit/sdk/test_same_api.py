"""The sync and the asyncio API are the same: names, arguments, defaults, types and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

import semel
import semel.aio
import semel.sql
from semel.sdk.testing.broker import AioBroker, Broker

PAIRS = {
    kind.__name__: (kind, other)
    for kind, other in [
        (semel.Admin, semel.aio.Admin),
        (semel.Consumer, semel.aio.Consumer),
        (semel.EmbeddedLog, semel.aio.EmbeddedLog),
        (semel.Producer, semel.aio.Producer),
        (semel.RebalanceListener, semel.aio.RebalanceListener),
        (semel.SharedTransaction, semel.aio.SharedTransaction),
        (semel.SharedWriter, semel.aio.SharedWriter),
        (semel.Transaction, semel.aio.Transaction),
        (semel.sql.Outbox, semel.aio.Outbox),
        (semel.sql.Sink, semel.aio.Sink),
    ]
}
ON_THE_SYNC_ONE = {"Outbox", "Sink"}
"""What works in a thread on the sync class, and says so in place of what that says of itself."""
SPECIAL = {"__init__", "__enter__", "__exit__", "__iter__"}
OF_ASYNCIO = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__"}
TYPES_OF_ASYNCIO = {
    "AsyncHandler": "Handler",
    "AsyncIterator": "Iterator",
    "RunsSync": "Executes",
    "sa.Connection": "Connection",
}


def public(kind: type) -> dict[str, Any]:
    """Return what programs may use of a class, by the name that it has in the sync API."""
    names = {OF_ASYNCIO.get(name, name): name for name in dir(kind)}
    return {
        name: inspect.getattr_static(kind, own)
        for name, own in names.items()
        if not name.startswith("_")
        or (name in SPECIAL and inspect.getattr_static(kind, own) is not getattr(object, own, None))
    }


def plain(text: str | None) -> str | None:
    """Return a docstring or a type without what only says that something is awaited."""
    if text is None:
        return None
    for own, name in {**OF_ASYNCIO, **TYPES_OF_ASYNCIO}.items():
        text = text.replace(own, name)
    return re.sub(r"\b(async|await) |(?<=semel\.)aio\.", "", text)


def described(member: Any) -> dict[str, Any]:
    """Return all that a caller sees of a method or property."""
    kind = "property" if isinstance(member, property) else type(member).__name__
    function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
    if not callable(function):
        return {"kind": kind}
    signature = inspect.signature(function)
    return {
        "kind": kind,
        "doc": plain(inspect.getdoc(function)),
        "returns": plain(str(signature.return_annotation)),
        "parameters": [
            (parameter.name, parameter.kind.name, parameter.default, plain(str(parameter.annotation)))
            for parameter in signature.parameters.values()
        ],
    }


def methods() -> Iterator[Any]:
    for pair, (kind, other) in PAIRS.items():
        for name in sorted(public(kind).keys() & public(other).keys()):
            yield pytest.param(public(kind)[name], public(other)[name], id=f"{pair}.{name}")


@pytest.mark.parametrize("pair", PAIRS)
def test_a_pair_has_the_same_names_and_says_the_same_of_itself(pair: str) -> None:
    kind, other = PAIRS[pair]
    assert public(kind).keys() == public(other).keys()
    assert plain(kind.__doc__) == plain(other.__doc__) or (pair in ON_THE_SYNC_ONE and other.__doc__)


@pytest.mark.parametrize(("one", "other"), list(methods()))
def test_a_method_is_the_same_in_both(one: Any, other: Any) -> None:
    assert described(one) == described(other)


def test_a_log_is_opened_with_the_same_arguments_in_both() -> None:
    one, other = described(semel.open), described(semel.aio.open)
    assert one == other
    assert [name for name, *_ in one["parameters"]] == ["path", "settings", "grpc", "kafka"]


def test_a_log_gives_clients_with_all_their_options_but_the_address() -> None:
    for kind, name, log in (
        (semel.Producer, "producer", semel.EmbeddedLog),
        (semel.aio.Consumer, "consumer", semel.aio.EmbeddedLog),
        (semel.Admin, "admin", semel.EmbeddedLog),
        (semel.sql.Sink, "sink", semel.EmbeddedLog),
        (semel.aio.Outbox, "outbox", semel.aio.EmbeddedLog),
    ):
        _, *options = inspect.signature(kind).parameters.values()
        _, *taken = inspect.signature(getattr(log, name)).parameters.values()
        assert taken == options
    assert described(semel.EmbeddedLog.create_topic)["parameters"] == described(semel.Admin.create_topic)["parameters"]


def test_the_methods_of_the_test_kit_take_the_same_arguments() -> None:
    """Faults are planted without waiting, by the one class for both, so the asyncio one has fewer methods."""
    mine, theirs = public(Broker), public(AioBroker)
    both = theirs.keys() & mine.keys() - SPECIAL
    assert theirs.keys() - both - SPECIAL == {"sync"} & theirs.keys()
    assert {name: described(theirs[name])["parameters"] for name in both if name != "sync"} == {
        name: described(mine[name])["parameters"] for name in both
    }


def everywhere() -> Iterator[tuple[str, Any]]:
    for pair in PAIRS.values():
        for kind in pair:
            for name, member in public(kind).items():
                yield f"{kind.__module__}.{kind.__name__}.{name}", member
    for kind in (Broker, AioBroker, semel.Delivery):
        yield from ((f"{kind.__name__}.{name}", member) for name, member in public(kind).items())


def test_a_time_to_wait_is_named_with_its_unit() -> None:
    names = {place: [each[0] for each in described(member).get("parameters", ())] for place, member in everywhere()}
    assert {
        place for place, found in names.items() if {"timeout", "seconds"} & set(found) and "advance" not in place
    } == set()


def test_all_clients_are_made_in_the_same_way() -> None:
    """One spelling of where the cluster is, with one default, and one client id."""
    for kind in (*PAIRS["SharedTransaction"], semel.sql.Sink, semel.sql.Outbox):
        assert str(inspect.signature(kind).parameters["bootstrap"].annotation) == "str | Sequence[str] | None"
    for pair in ("Admin", "Consumer", "Producer"):
        for kind in PAIRS[pair]:
            parameters = inspect.signature(kind).parameters
            assert str(parameters["bootstrap"].annotation) == "str | Sequence[str] | None"
            assert parameters["bootstrap"].default is None
            assert parameters["client_id"].default == "semel"
