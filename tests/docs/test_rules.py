"""The guarantee and the rules name tests, and these exist; the diagrams have the moves of the tables, no others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import made_parts
import pytest
import state_pictures

from semel.group_coordinator.classic import state as group_state
from semel.sdk.producer.transaction_manager import LEGAL_MOVES
from semel.txn_coordinator import state

ROOT = Path(__file__).parents[2]
GUARANTEE = (ROOT / "docs" / "guarantee.md").read_text()
RULES = (ROOT / "docs" / "reference" / "rules.md").read_text()
UNPROVABLE = ("An old backup", "A client's clock", "Offsets of a group are moved")
"""Lines of the guarantee that say what can't be kept, or what was asked for."""


def existing_tests() -> set[str]:
    files = (ROOT / "tests").glob("**/test_*.py")
    return set(chain.from_iterable(re.findall(r"def (test_\w+)", file.read_text()) for file in files))


def test_every_test_that_the_guarantee_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", GUARANTEE))
    assert len(named) > 60
    assert named <= existing_tests()


def test_every_failure_of_the_guarantee_has_its_proof() -> None:
    failures = GUARANTEE.split("## Failures and their outcomes")[1].split("## What is not guaranteed")[0]
    rows = [row for row in failures.splitlines() if row.startswith("| ") and "What happens" not in row]
    without = [row for row in rows if "`test_" not in row and not row[2:].startswith(UNPROVABLE)]
    assert len(rows) > 30
    assert not without


def rules_of(page: str) -> tuple[set[str], dict[str, str]]:
    """The rules, and what the page says of those that are not kept yet."""
    chapters, _, last = page.partition("## Not yet\n")
    row = re.compile(rf"^\| ([{made_parts.RULE_LETTERS}]\d+) \| ([^|]+) \|", re.MULTILINE)
    rules = [rule for rule, _ in row.findall(chapters)]
    assert len(rules) == len(set(rules))
    return set(rules), dict(row.findall(last))


def test_every_rule_has_a_proof_and_every_proof_a_rule() -> None:
    rules, coming = rules_of(RULES)
    proved = set(made_parts.proofs())
    assert proved <= rules
    assert coming.keys() <= rules
    assert all(len(reason) > 20 for reason in coming.values())
    assert rules - proved <= coming.keys(), "without a proof, and not named as missing"


def test_a_rule_without_a_proof_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """R rules were not counted once, and one of them had no proof."""
    known = dict(made_parts.proofs())
    for rule in ("R1", "D5", "P1"):
        monkeypatch.setattr(made_parts, "proofs", lambda rule=rule: {k: v for k, v in known.items() if k != rule})
        with pytest.raises(AssertionError, match=rule):
            test_every_rule_has_a_proof_and_every_proof_a_rule()
    monkeypatch.setattr(made_parts, "proofs", lambda: {**known, "R99": []})
    with pytest.raises(AssertionError, match="R99"):
        test_every_rule_has_a_proof_and_every_proof_a_rule()


def holders_of(page: str) -> dict[str, str]:
    """What the page says of who holds each rule."""
    chapters, _, _ = page.partition("## Not yet\n")
    row = re.compile(rf"^\| ([{made_parts.RULE_LETTERS}]\d+) \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)
    return dict(row.findall(chapters))


def faults_of_holder(rule: str, holder: str) -> Iterator[str]:
    """What is wrong with an entry. Its names in code are files, and after each file what is in it."""
    named = re.findall(r"`([^`]+)`", holder)
    files = [ROOT / name for name in named if name.endswith(".py")]
    if not re.match(r"(Not built: )?`[\w/]+\.py`", holder):
        yield f"{rule}: does not begin with a file"
    if len(files) > 3:
        yield f"{rule}: {len(files)} files do not say which one decides"
    text = ""
    for name in named:
        if name.endswith(".py"):
            path = ROOT / name
            text = path.read_text() if path.is_file() else ""
            if not text:
                yield f"{rule}: there is no file {name}"
            elif not re.search(rf"\b{rule}\b", text):
                yield f"{rule}: {name} does not name it"
        elif not re.search(rf"\b{re.escape(name)}\b", text):
            yield f"{rule}: the file before it has no {name}"


def test_every_rule_says_which_file_holds_it_and_that_file_names_the_rule() -> None:
    rules, coming = rules_of(RULES)
    holders = holders_of(RULES)
    assert holders.keys() == rules
    assert {rule for rule, holder in holders.items() if holder.startswith("Not built")} <= coming.keys()
    assert not [fault for rule, holder in holders.items() for fault in faults_of_holder(rule, holder)]


@pytest.mark.parametrize(
    ("holder", "fault"),
    [
        ("`runtime/shards.py` (`_park`)", "there is no file runtime/shards.py"),
        ("`runtime/clock.py`", "runtime/clock.py does not name it"),
        ("`runtime/shard.py` (`_parking`)", "the file before it has no _parking"),
        ("the shard: `runtime/shard.py`", "does not begin with a file"),
    ],
)
def test_a_holder_that_does_not_hold_is_noticed(holder: str, fault: str) -> None:
    assert list(faults_of_holder("T2", "`runtime/shard.py` (`_park`)")) == []
    assert f"T2: {fault}" in list(faults_of_holder("T2", holder))


def test_a_rule_without_a_holder_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    without = re.sub(r"^(\| D5 \| [^|]+ \|)[^|]+\|$", r"\1", RULES, flags=re.MULTILINE)
    assert without != RULES
    monkeypatch.setitem(globals(), "RULES", without)
    with pytest.raises(AssertionError, match="D5"):
        test_every_rule_says_which_file_holds_it_and_that_file_names_the_rule()


def test_chapters_of_the_rules_are_where_links_lead() -> None:
    for letter, anchor in made_parts.CHAPTERS.items():
        heading = next(
            h
            for h in re.findall(r"^## (.+)$", RULES, re.MULTILINE)
            if h.lower().replace(",", "").replace(" ", "-") == anchor
        )
        assert re.search(rf"\b{letter}[1-9]\b", RULES.split(f"## {heading}\n")[1].split("\n## ")[0])


def test_a_tests_name_becomes_a_link_to_its_rules() -> None:
    linked = made_parts.with_linked_proofs("| `test_T3_D1_a_node_dies` |", "rules.md")
    assert linked == "| [T3](rules.md#the-transaction-coordinator), [D1](rules.md#the-log) a node dies<br> |"


def drawn(diagram: str) -> set[tuple[str, str]]:
    """The moves that the picture shows, read from its arrows."""
    picture = state_pictures.svg_of(state_pictures.moves_of(re.sub(r"^```.*\n?", "", diagram, flags=re.MULTILINE)))
    arrows = re.findall(r'data-move="(\S+) --&gt; (\S+?)(?:: [^"]*)?"', picture)
    assert len(arrows) == picture.count('marker-end="url(#arrow)"')
    return {(before, after) for before, after in arrows if "[*]" not in (before, after)}


def test_T1_the_picture_of_a_transaction_is_the_table() -> None:
    tables = (state.LEGAL_PREDECESSORS, state.LEGAL_PREDECESSORS_WITH_EPOCH_BUMP)
    moves = {(b.label, after.label) for table in tables for after, befores in table.items() for b in befores}
    assert drawn(made_parts.transaction_states()) == moves


def test_G1_the_picture_of_a_group_is_the_table() -> None:
    moves = {(b.value, after.value) for after, befores in group_state.LEGAL_PREDECESSORS.items() for b in befores}
    assert drawn(made_parts.group_states()) == moves


def test_the_picture_of_a_producer_is_the_table_but_for_its_ends() -> None:
    name = made_parts.state_name
    moves = {(name(before), name(after)) for before, afters in LEGAL_MOVES.items() for after in afters}
    ends = {"Fenced", "Failed"}
    assert drawn(made_parts.producer_states()) == {(before, after) for before, after in moves if after not in ends}
    assert {before for before, after in moves if after == "Fenced"} == {name(one) for one in LEGAL_MOVES} - ends
