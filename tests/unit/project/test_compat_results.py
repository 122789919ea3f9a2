"""`make compat-full`: a run is compared with what is known of it, and the documentation says what is known."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from full_suites import FULL, neighbour

ROOT = FULL.parents[2]


@pytest.fixture(scope="module")
def made() -> ModuleType:
    """The module under test."""
    return neighbour("results")


def a_list(made: ModuleType, folder: Path, nodes: int = 1) -> object:
    path = folder / "expected.toml"
    path.write_text(
        """
        [["client*"]]
        tests = ["acl_*"]
        is = "fails"
        because = "no ACLs"
        [[client]]
        tests = ["sasl", "slow/part"]
        is = "skipped"
        because = "no SASL"
        [[client]]
        tests = ["shaky"]
        is = "unstable"
        because = "sleeps"
        [[client]]
        tests = ["alone"]
        is = "fails"
        because = "expects one node"
        with_several_nodes = true
        [[client]]
        tests = ["followers"]
        is = "fails"
        because = "expects several nodes"
        with_one_node = true
        """
    )
    return made.ExpectedList.read(path, nodes)


@pytest.mark.parametrize(
    ("test", "outcome", "said"),
    [
        ("other", "PASSED", ""),
        ("other", "FAILED", "client other: failed. why"),
        ("other", "TIMED_OUT", "client other: timed out. why"),
        ("other", "SKIPPED", "client other: skipped. why"),
        ("acl_add", "FAILED", ""),
        ("acl_add", "TIMED_OUT", ""),
        ("acl_add", "PASSED", "says fails (no ACLs)"),
        ("sasl", "SKIPPED", ""),
        ("sasl", "PASSED", "says skipped (no SASL)"),
        ("shaky", "FAILED", ""),
        ("shaky", "PASSED", ""),
        ("shaky", "SKIPPED", "says unstable"),
    ],
)
def test_only_what_differs_from_the_list_is_unexpected(
    made: ModuleType, tmp_path: Path, test: str, outcome: str, said: str
) -> None:
    expected = a_list(made, tmp_path)
    lines = expected.unexpected([made.Result("client", test, made.Outcome[outcome], 1.0, "why")])  # type: ignore[attr-defined]
    assert len(lines) == bool(said)
    assert said in "".join(lines)


def test_what_the_list_skips_is_not_run(made: ModuleType, tmp_path: Path) -> None:
    expected = a_list(made, tmp_path)
    assert expected.left_out("client", "slow/part") == "no SASL"  # type: ignore[attr-defined]
    assert expected.left_out("client-2", "slow/part") is None  # type: ignore[attr-defined]
    assert expected.left_out("client", "acl_add") is None  # type: ignore[attr-defined]


@pytest.mark.parametrize(("nodes", "outcome"), [(1, "PASSED"), (3, "FAILED"), (None, "FAILED")])
def test_what_fails_with_several_nodes_has_to_pass_with_one(
    made: ModuleType, tmp_path: Path, nodes: int, outcome: str
) -> None:
    expected = a_list(made, tmp_path, nodes)
    for each in ("PASSED", "FAILED"):
        lines = expected.unexpected([made.Result("client", "alone", made.Outcome[each], 1.0)])  # type: ignore[attr-defined]
        assert (not lines) == (each == outcome)


@pytest.mark.parametrize(("nodes", "outcome"), [(1, "FAILED"), (3, "PASSED"), (None, "FAILED")])
def test_what_fails_with_one_node_has_to_pass_with_several(
    made: ModuleType, tmp_path: Path, nodes: int, outcome: str
) -> None:
    expected = a_list(made, tmp_path, nodes)
    for each in ("PASSED", "FAILED"):
        lines = expected.unexpected([made.Result("client", "followers", made.Outcome[each], 1.0)])  # type: ignore[attr-defined]
        assert (not lines) == (each == outcome)


@pytest.mark.parametrize(
    "entry", ['is = "fails"', 'is = "fails"\nbecause = ""', 'is = "fails"\nbecause = "x"\nwhy = "y"']
)
def test_an_entry_without_a_reason_is_refused(made: ModuleType, tmp_path: Path, entry: str) -> None:
    path = tmp_path / "expected.toml"
    path.write_text(f'[[client]]\ntests = ["a"]\n{entry}\n')
    with pytest.raises(ValueError, match="because"):
        made.ExpectedList.read(path)


def test_a_second_try_is_counted(made: ModuleType) -> None:
    passed = made.Outcome.PASSED
    found = made.summary([made.Result("client", "a", passed, 1.0), made.Result("client", "b", passed, 1.0, "", 2)])
    assert found == "client: 2 passed; 1 needed a second try"


def test_events_of_go_come_to_one_result_for_each_part(made: ModuleType) -> None:
    events = [
        '{"Action":"run","Test":"TestA"}',
        '{"Action":"run","Test":"TestA/one"}',
        '{"Action":"run","Test":"TestA/two"}',
        '{"Action":"output","Test":"TestA/two","Output":"    a_test.go:7: lost a record\\n"}',
        "a line that is no event",
        '{"Action":"fail","Test":"TestA/two","Elapsed":2.5}',
        '{"Action":"pass","Test":"TestA/one","Elapsed":1}',
        '{"Action":"fail","Test":"TestA","Elapsed":3}',
        '{"Action":"run","Test":"TestB"}',
        '{"Action":"run","Test":"TestC"}',
        '{"Action":"run","Test":"TestC/range"}',
        '{"Action":"run","Test":"TestC/range/848"}',
        '{"Action":"fail","Test":"TestC/range","Elapsed":4}',
        '{"Action":"pass","Test":"TestC/range/848","Elapsed":5}',
        '{"Action":"fail","Test":"TestC","Elapsed":6}',
        '{"Action":"run","Test":"TestD"}',
        '{"Action":"run","Test":"TestD/one"}',
        '{"Action":"pass","Test":"TestD/one","Elapsed":1}',
        '{"Action":"fail","Test":"TestD","Elapsed":7}',
        '{"Action":"run","Test":"TestE"}',
        '{"Action":"run","Test":"TestE/one"}',
        '{"Action":"pass","Test":"TestE/one","Elapsed":1}',
        '{"Action":"pass","Test":"TestE","Elapsed":8}',
        '{"Action":"fail","Package":"kgo","Elapsed":9}',
    ]
    assert neighbour("franz_go").read_events(events) == [
        made.Result("franz-go", "TestA/one", made.Outcome.PASSED, 1.0),
        made.Result("franz-go", "TestA/two", made.Outcome.FAILED, 2.5, "a_test.go:7: lost a record"),
        made.Result("franz-go", "TestB", made.Outcome.TIMED_OUT, 0.0),
        made.Result("franz-go", "TestC/range", made.Outcome.FAILED, 4.0),
        made.Result("franz-go", "TestC/range/848", made.Outcome.PASSED, 5.0),
        made.Result("franz-go", "TestD", made.Outcome.FAILED, 7.0),
        made.Result("franz-go", "TestD/one", made.Outcome.PASSED, 1.0),
        made.Result("franz-go", "TestE/one", made.Outcome.PASSED, 1.0),
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[ do_test_a:7: with b ]\n[ do_test_a:7: with b: PASS (0.1s) ]", None),
        ("[ do_test_a:7 ]\n[ do_test_a:7: SKIP: needs c: d\n ]", "needs c: d"),
        ("[ do_test_a:7 ]\n[ do_test_a:7: SKIP: needs c ]\n[ do_test_a:7 ]\n[ do_test_a:7: PASS (1s) ]", None),
        ("[ do_test_ab:7 ]\n[ do_test_ab:7: PASS (0.1s) ]", "not run in this mode"),
    ],
)
def test_a_part_of_librdkafkas_that_does_nothing_is_skipped(text: str, why: str | None) -> None:
    assert neighbour("librdkafka").why_skipped("do_test_a", text) == why


def test_a_way_to_run_librdkafka_has_its_own_tests() -> None:
    variants = {each.name: each for each in neighbour("librdkafka").VARIANTS}
    for test in ("0097_ssl_verify", "0126_oauthbearer_oidc", "0135_sasl_credentials", "0142_reauthentication"):
        assert [name for name, each in variants.items() if each.has(test)], test
        assert not variants["librdkafka"].has(test)
    assert variants["librdkafka"].has("0115_producer_auth")
    assert not variants["librdkafka-ssl"].has("0115_producer_auth")


def test_the_documentation_says_what_the_list_says(made: ModuleType) -> None:
    """Write it again with: .venv/bin/python -P tests/compat/full/run.py --write-page"""
    document = (ROOT / "docs" / "compatibility.md").read_text()
    assert document == made.with_known_page(document, made.known_page(made.ExpectedList.read()))
