"""`make simulate-faults`: each fault of the simulator's table still applies, and its seeds are written down again."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from mutants.edits import DoesNotApplyError, Sources, apply
from mutants.kept_list import BadListError
from simulation import planted_table
from simulation.plant import Outcome

ROOT = Path(__file__).resolve().parents[3]

ENTRY = """python = "3.11"

# a comment
[X1]
fault = "Something is left out."
rules = ["D1"]
place = "broker.node:Node.stop"
old = "a"
new = "b"
{}

# --- The next part.

[D1b]
{}
"""


@pytest.fixture(scope="module")
def table() -> planted_table.Table:
    return planted_table.read_table()


def test_every_fault_of_the_simulator_applies_exactly_once_to_todays_sources(table: planted_table.Table) -> None:
    sources = Sources(ROOT / "src" / "semel")
    troubles = []
    for fault in table.faults:
        try:
            changed = apply(fault.edits, sources)
        except DoesNotApplyError as error:
            troubles.append(f"fault {fault.id} no longer applies: {error}")
            continue
        assert all(sources.text(path) != text for path, text in changed.items()), fault.id
    assert not troubles, "\n".join(troubles)


def test_every_fault_has_a_seed_or_says_why_not_and_names_rules_that_are_written_down(
    table: planted_table.Table,
) -> None:
    known = set(re.findall(r"\b[A-Z]\d+\b", (ROOT / "docs" / "reference" / "rules.md").read_text()))
    for fault in table.faults:
        assert (fault.seed is None) == bool(fault.unseen or fault.sought), fault.id
        assert set(fault.rules) <= known, fault.id
    assert sum(fault.seed is not None for fault in table.faults) >= 25


def test_an_entry_without_edits_is_the_fault_of_that_name_in_the_kept_list(tmp_path: Path) -> None:
    path = tmp_path / "faults.toml"
    path.write_text(ENTRY.format('seed = 3\nfinds = "D1"', 'unseen = "why"'))
    first, second = planted_table.read_table(path).faults
    assert (first.id, first.seed, first.finds, first.edits[0].new) == ("X1", 3, "D1", "b")
    assert second.says == "What was written while a sync ran counts as durable when it ends."
    assert (second.rules, second.seed, second.unseen) == (("D1",), None, "why")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ENTRY.format("seed = 3", ""), "needs both seed and finds"),
        (ENTRY.format("shown = 3", ""), "shown is to be a number"),
        (ENTRY.format("speed = 3", ""), "speed is none of"),
        (ENTRY.format("", "rules = []"), "does not say what the fault is"),
        (ENTRY.format("", "").replace("D1b", "D1-none"), "D1-none"),
        (ENTRY.format("", "").replace("python", "snake"), "python"),
    ],
)
def test_an_entry_that_cannot_be_understood_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "faults.toml"
    path.write_text(text)
    with pytest.raises(BadListError, match=said):
        planted_table.read_table(path)


def test_seeds_are_written_into_the_table_and_all_else_stays(tmp_path: Path) -> None:
    path = tmp_path / "faults.toml"
    path.write_text(ENTRY.format('seed = 3\nfinds = "D1"', ""))
    path.write_text(planted_table.recorded(path.read_text(), {"X1": (17, "lost", 0), "D1b": (4, "torn", 5)}))
    faults = planted_table.read_table(path).faults
    assert [(one.seed, one.finds, one.shown) for one in faults] == [(17, "lost", 0), (4, "torn", 5)]
    text = path.read_text()
    assert "# a comment\n[X1]\n" in text
    assert 'finds = "lost"\nshown = 0\n\n# --- The next part.\n\n[D1b]\n' in text
    expected = ENTRY.format('seed = 17\nfinds = "lost"\nshown = 0', 'seed = 4\nfinds = "torn"\nshown = 5')
    assert text.split() == expected.replace("3.11", planted_table.THIS_PYTHON).split()
    assert planted_table.recorded(text, {"X1": (17, "lost", 0)}) == text


def test_faults_are_chosen_by_id_and_pattern() -> None:
    faults = [SimpleNamespace(id=name) for name in ("D1a", "D1b", "LSO")]

    def ids(*patterns: str) -> list[str]:
        return [fault.id for fault in planted_table.chosen(faults, patterns)]  # type: ignore[arg-type]

    assert ids() == ["D1a", "D1b", "LSO"]
    assert ids("LSO", "*a") == ["D1a", "LSO"]
    with pytest.raises(BadListError, match="Z1"):
        ids("D1a", "Z1")


def test_a_fault_that_is_not_found_is_wrong_unless_no_world_can_see_it(table: planted_table.Table) -> None:
    seen = next(fault for fault in table.faults if not fault.unseen)
    lost = Outcome(seen, None, "", 7, 1.0, "not found")
    assert lost.is_wrong
    assert "[not found]" in lost.line()
    assert not Outcome(seen, 3, "D1", 4, 1.0).is_wrong
