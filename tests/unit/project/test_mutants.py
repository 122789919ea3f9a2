"""`make mutants`: each fault of the kept list still applies, and the runner tells what is noticed from what lives."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

TESTS = Path(__file__).resolve().parents[2]
ROOT = TESTS.parent
RUN = TESTS / "mutants" / "run.py"


@pytest.fixture(scope="module")
def made() -> SimpleNamespace:
    """The modules under test, which belong to a script and to no installed package."""
    sys.path.insert(0, str(TESTS))
    try:
        from mutants import edits, kept_list, named_tests
    finally:
        sys.path.remove(str(TESTS))
    return SimpleNamespace(edits=edits, kept_list=kept_list, named_tests=named_tests)


# --- The current list -------------------------------------------------------------------------------------------------


def test_every_kept_fault_applies_exactly_once_to_todays_sources(made: SimpleNamespace) -> None:
    sources = made.edits.Sources(ROOT / "src" / "semel")
    troubles = []
    for fault in made.kept_list.read_list():
        try:
            changed = made.edits.apply(fault.edits, sources)
            assert all(sources.text(path) != text for path, text in changed.items()), fault.id
        except made.edits.DoesNotApplyError as error:
            troubles.append(f"fault {fault.id} no longer applies: {error}")
    assert not troubles, "\n".join(troubles)


def test_every_kept_fault_names_tests_that_exist_and_rules_that_are_written_down(made: SimpleNamespace) -> None:
    index = made.named_tests.TestIndex(TESTS)
    known = set(re.findall(r"\b[A-Z]\d+\b", (ROOT / "docs" / "reference" / "rules.md").read_text()))
    troubles = []
    for fault in made.kept_list.read_list():
        troubles += [f"fault {fault.id}: there is no rule {rule}" for rule in set(fault.rules) - known]
        for test in fault.tests:
            try:
                index.resolve(test)
            except made.named_tests.MissingTestError as error:
                troubles.append(f"fault {fault.id}: {error}")
    assert not troubles, "\n".join(troubles)


def test_every_case_that_a_kept_fault_names_is_collected(made: SimpleNamespace) -> None:
    """A case has its name from its parameters: the runner hears only of what pytest collects by that name."""
    index = made.named_tests.TestIndex(TESTS)
    cases = sorted({index.resolve(test) for fault in made.kept_list.read_list() for test in fault.tests if "[" in test})
    assert cases
    collected = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "--collect-only", "-q", *cases],
        cwd=TESTS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert collected.returncode == 0, collected.stdout + collected.stderr


# --- Edits ------------------------------------------------------------------------------------------------------------

SOURCE = '''
class Machine:
    def step(self, count):
        """Docstring with "count > 1" in it."""
        # count > 1
        if (count
                > 1):
            self.log("grü", count > 2)
            return self.first(count)
        elif count > 3:
            pass
        return None

    def stop(self):
        for each in self.all:
            each.end()
        self.log("end")

    def twice(self):
        self.log("end")
        self.log("end")


def alone():
    return 1
'''


@pytest.fixture
def edited(made: SimpleNamespace, tmp_path: Path) -> SimpleNamespace:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "machine.py").write_text(SOURCE)
    (tmp_path / "other.py").write_text("def other():\n    return 2\n")

    def apply(place: str, old: str, new: str) -> str:
        changed = made.edits.apply((made.edits.Edit(place, old, new),), made.edits.Sources(tmp_path))
        assert len(changed) == 1
        return next(iter(changed.values()))

    return SimpleNamespace(apply=apply, folder=tmp_path, error=made.edits.DoesNotApplyError)


def test_an_expression_is_found_however_it_is_laid_out_and_nothing_else_changes(edited: SimpleNamespace) -> None:
    text = edited.apply("parts.machine:Machine.step", "count>1", "count >= 1")
    assert text == SOURCE.replace("count\n                > 1", "(count >= 1)")


def test_an_expression_behind_letters_of_several_bytes_is_replaced_at_its_place(edited: SimpleNamespace) -> None:
    text = edited.apply("parts.machine:Machine.step", "count > 2", "False")
    assert 'self.log("grü", (False))' in text


def test_the_condition_of_an_elif_can_be_replaced(edited: SimpleNamespace) -> None:
    assert "elif (False):" in edited.apply("parts.machine:Machine.step", "count > 3", "False")


def test_statements_are_replaced_with_their_indentation(edited: SimpleNamespace) -> None:
    text = edited.apply(
        "parts.machine:Machine.stop",
        "\nfor each in self.all:\n    each.end()\nself.log('end')\n",
        "\nif self.all:\n    self.all[0].end()\n",
    )
    assert "    def stop(self):\n        if self.all:\n            self.all[0].end()\n\n    def twice" in text


def test_an_edit_whose_source_is_gone_or_there_twice_is_refused(edited: SimpleNamespace) -> None:
    with pytest.raises(edited.error, match="is not there"):
        edited.apply("parts.machine:Machine.stop", "self.log('begin')", "pass")
    with pytest.raises(edited.error, match="is there 2 times"):
        edited.apply("parts.machine:Machine.twice", "self.log('end')", "pass")
    with pytest.raises(edited.error, match="is there 2 times"):
        edited.apply("parts.machine:Machine.twice", "self.log", "print")


def test_a_function_that_has_moved_is_found_unless_there_are_two(edited: SimpleNamespace) -> None:
    assert "return (3)" in edited.apply("other:alone", "1", "3")
    (edited.folder / "third.py").write_text(SOURCE)
    with pytest.raises(edited.error, match=r"alone is not in other any more, and is in (parts/machine|third)\.py, "):
        edited.apply("other:alone", "1", "3")
    with pytest.raises(edited.error, match="nowhere else"):
        edited.apply("other:gone", "1", "3")


def test_an_edit_that_makes_no_python_is_refused(edited: SimpleNamespace) -> None:
    with pytest.raises(edited.error, match="does not compile"):
        edited.apply("parts.machine:Machine.stop", "for each in self.all:\n    each.end()", "continue")


# --- The list's form --------------------------------------------------------------------------------------------------

ENTRY = '[X1]\nfault = "F."\nplace = "m:f"\nold = "1"\nnew = "2"\ntests = ["unit/test_a.py::test_a"]\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ENTRY + 'test = ["x"]\n', "test is none of"),
        (ENTRY.replace('new = "2"\n', ""), "fault X1: 'new'"),
        (ENTRY.replace('place = "m:f"\n', ""), "it needs place, old and new, or edits"),
        (ENTRY.replace('tests = ["unit/test_a.py::test_a"]\n', ""), "names no test that notices it"),
        (ENTRY + ENTRY, "Cannot declare"),
    ],
)
def test_an_entry_that_cannot_be_understood_is_refused(
    made: SimpleNamespace, tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "area.toml").write_text(text)
    with pytest.raises(made.kept_list.BadListError, match=said):
        made.kept_list.read_list(tmp_path)


def test_faults_are_chosen_by_id_pattern_and_area(made: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "first.toml").write_text(ENTRY + ENTRY.replace("X1", "X2"))
    (tmp_path / "second.toml").write_text(ENTRY.replace("X1", "Y1"))
    faults = made.kept_list.read_list(tmp_path)

    def ids(*patterns: str) -> list[str]:
        return [fault.id for fault in made.kept_list.chosen(faults, patterns)]

    assert ids("X*") == ids("first") == ["X1", "X2"]
    assert ids("Y1", "X1", "Y?") == ["Y1", "X1"]
    with pytest.raises(made.kept_list.BadListError, match="Z1"):
        ids("Z1")


def test_a_test_that_has_moved_is_found_unless_there_are_two(made: SimpleNamespace, tmp_path: Path) -> None:
    for folder in ("unit", "property"):
        (tmp_path / folder).mkdir()
    (tmp_path / "unit" / "test_a.py").write_text("def test_a():\n    pass\n\n\nasync def test_both():\n    pass\n")
    (tmp_path / "property" / "test_b.py").write_text(
        "class TestAll:\n    def test_in(self):\n        pass\n\n\ndef test_both():\n    pass\n\n\nTestM = M.TestCase\n"
    )
    index = made.named_tests.TestIndex(tmp_path)
    assert index.resolve("unit/test_a.py::test_a[1-x::y]") == "unit/test_a.py::test_a[1-x::y]"
    assert index.resolve("unit/test_gone.py::test_a[1]") == "unit/test_a.py::test_a[1]"
    assert index.resolve("unit/test_a.py::TestAll::test_in") == "property/test_b.py::TestAll::test_in"
    assert index.resolve("property/test_b.py::TestM::runTest") == "property/test_b.py::TestM::runTest"
    for gone in ("unit/test_a.py::test_gone", "unit/test_gone.py::test_both", "unit/test_gone.py"):
        with pytest.raises(made.named_tests.MissingTestError):
            index.resolve(gone)


# --- The runner -------------------------------------------------------------------------------------------------------

TOTAL = """
def total(values):
    result = 0
    for value in values:
        result += value
    return result


def largest(values):
    return max(values)
"""

JUDGES = """
import os
import time

import pytest

from semel.total import largest, total


def test_one():
    assert total([1]) == 1


def test_some():
    assert total([1, 2]) == 3


def test_waits():
    while total([1, 1]) != 2:
        time.sleep(0.01)


@pytest.mark.parametrize("wanted", [3, pytest.param(4, marks=pytest.mark.skip)])
def test_largest(wanted):
    assert largest([1, 3]) == wanted


def test_fails_anyway():
    assert largest([1, 3]) == 4


def test_skipped():
    pytest.skip("no engine")
"""

FAULTS = """
[Noticed]
fault = "The last value is left out."
place = "total:total"
old = "values"
new = "values[:-1]"
tests = ["unit/test_total.py::test_some", "unit/test_total.py::test_one"]

[Hangs]
fault = "Values are multiplied."
place = "total:total"
old = "result += value"
new = "result *= value"
tests = ["unit/test_total.py::test_waits"]

[Lives]
fault = "Only two values are summed."
place = "total:total"
old = "values"
new = "values[:2]"
tests = ["unit/test_total.py::test_some"]

[Expected]
fault = "The values are sorted first."
place = "total:largest"
old = "max(values)"
new = "sorted(values)[-1]"
tests = ["unit/test_total.py::test_largest"]
lives = "equivalent"

[Breaks]
fault = "The module cannot be loaded."
place = "total"
old = '''
def largest(values):
    return max(values)
'''
new = "largest = max[0]"
tests = ["unit/test_total.py::test_largest"]

[Gone]
fault = "The product is wrong."
place = "total:product"
old = "1"
new = "2"
tests = ["unit/test_total.py::test_some"]

[Unjudged]
fault = "The smallest is returned."
place = "total:largest"
old = "max(values)"
new = "min(values)"
tests = [
    "unit/test_total.py::test_fails_anyway",
    "unit/test_total.py::test_skipped",
    "unit/test_total.py::test_not_written",
]
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout of a package with one module, its tests, and the machinery."""
    root = tmp_path_factory.mktemp("checkout")
    for name in ("src/semel", "tests/unit", "tests/mutants/faults"):
        (root / name).mkdir(parents=True)
    (root / "src" / "semel" / "__init__.py").touch()
    (root / "src" / "semel" / "total.py").write_text(TOTAL)
    (root / "tests" / "unit" / "test_total.py").write_text(JUDGES)
    for module in (TESTS / "mutants").glob("*.py"):
        (root / "tests" / "mutants" / module.name).write_bytes(module.read_bytes())
    (root / "tests" / "mutants" / "faults" / "total.toml").write_text(FAULTS)
    (root / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\naddopts = ["--import-mode=importlib", "-p", "no:semel"]\n'
    )
    return root


def run(checkout: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-P", str(RUN), "--checkout", str(checkout), "--jobs", "2", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150)
    return done.returncode, done.stdout + done.stderr


def test_the_runner_tells_what_is_noticed_from_what_lives(checkout: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()}
    code, said = run(checkout, "--timeout", "3", "--json", str(tmp_path / "outcomes.json"))
    told = {each["id"]: each for each in json.loads((tmp_path / "outcomes.json").read_text())}
    assert {name: each["fate"] for name, each in told.items()} == {
        "Noticed": "noticed",
        "Hangs": "noticed",
        "Lives": "lives",
        "Expected": "lives",
        "Breaks": "noticed",
        "Gone": "does_not_apply",
        "Unjudged": "no_judge",
    }, said
    assert told["Noticed"]["detail"] in ("unit/test_total.py::test_some", "unit/test_total.py::test_one")
    assert told["Hangs"]["detail"] == "unit/test_total.py::test_waits (by hanging)"
    assert told["Breaks"]["detail"].startswith("by breaking")
    assert "product is not in total any more" in told["Gone"]["detail"]
    for why in ("fails without a fault", "is skipped", "there is no unit/test_total.py::test_not_written"):
        assert why in told["Unjudged"]["detail"]
    assert code == 1
    assert "7 faults: 3 noticed, 1 live, as expected, 1 LIVE, 1 NO LONGER APPLIES, 1 NO TEST TO JUDGE" in said
    assert "To be done, for Lives Gone Unjudged:" in said
    assert before == {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()}


def test_the_exit_code_is_0_where_all_is_noticed_or_expected(checkout: Path) -> None:
    code, said = run(checkout, "Noticed", "Exp*")
    assert (code, "To be done" in said) == (0, False), said


def test_a_sample_is_drawn_from_what_must_be_noticed_and_again_by_its_seed(checkout: Path) -> None:
    code, said = run(checkout, "Noticed", "Expected", "Breaks", "--sample", "1", "--seed", "a")
    assert code == 0
    assert "1 of 2 faults, SEED=a" in said
    drawn = said.splitlines()[2].split()[0]
    assert drawn in ("Noticed", "Breaks")
    assert drawn in run(checkout, "Noticed", "Expected", "Breaks", "--sample", "1", "--seed", "a")[1]


def test_what_a_fault_changes_can_be_shown_without_planting_it(checkout: Path) -> None:
    code, said = run(checkout, "--show", "Noticed")
    assert code == 0
    assert "-    for value in values:\n+    for value in (values[:-1]):" in said
    assert run(checkout, "--show", "Gone")[0] == 1
