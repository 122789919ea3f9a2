"""Regular expressions of subscriptions: RE2's syntax, whole names, and time that grows only with the names' length."""

from __future__ import annotations

import re

import pytest
from consumer_member import topic_id
from hypothesis import given
from hypothesis import strategies as st

from semel.group_coordinator.consumer.topics import Topic, Topics
from semel.runtime.linear_regex import PATTERN_CHARACTERS_MAX, LinearPattern, PatternError


@pytest.mark.parametrize(
    ("expression", "matching", "others"),
    [
        ("orders", ["orders"], ["order", "orders2", "an-orders", ""]),
        ("orders.*", ["orders", "orders-eu"], ["my-orders"]),
        ("a|b|", ["a", "b", ""], ["ab", "c"]),
        ("(a|b)+c?", ["a", "abab", "bc"], ["", "c", "acc"]),
        ("x{2}", ["xx"], ["x", "xxx"]),
        ("x{2,}", ["xx", "xxxxx"], ["x"]),
        ("x{1,3}y", ["xy", "xxxy"], ["y", "xxxxy"]),
        ("x{0}y", ["y"], ["xy"]),
        ("x{,3}", ["x{,3}"], ["xx"]),
        ("a{", ["a{"], ["a"]),
        ("a+?b*?", ["a", "aab"], ["b"]),
        ("[a-c0-9_]+", ["b7_"], ["d", "-"]),
        ("[^a-c]", ["d", "-"], ["a", ""]),
        ("[]a]+", ["]a"], ["b"]),
        ("[a-]+", ["a-"], ["b"]),
        ("[[:alpha:][:digit:]]+", ["a1"], ["a-1"]),
        ("[[:^alpha:]]+", ["1-2"], ["a"]),
        (r"[\d\-]+", ["1-2"], ["a"]),
        (r"\d\D\w\W", ["1aa-"], ["aaaa"]),
        (r"a\.b", ["a.b"], ["axb"]),
        (r"\x61\x{62}", ["ab"], ["xy"]),
        (r"\Qa.b*\Ec", ["a.b*c"], ["axbbc"]),
        (r"^a$", ["a"], ["ab"]),
        (r"\Aa\z", ["a"], ["aa"]),
        (r"a^b", [], ["ab", "a^b"]),
        (r".*\bb.*", ["a-b", "b"], ["ab"]),
        (r"a\Bb", ["ab"], ["a"]),
        ("(?i)abc", ["aBC"], ["abd"]),
        ("(?i:a)b", ["Ab", "ab"], ["aB"]),
        ("a(?i)b|c", ["aB", "C"], ["AB"]),
        ("(?i-i:a)", ["a"], ["A"]),
        ("(?s).+", ["abc"], [""]),
        ("(?:ab)+", ["abab"], ["aba"]),
        ("(?P<name>a)(?<other>b)", ["ab"], ["a"]),
        ("(a*)*b", ["b", "aaab"], ["a"]),
        ("()", [""], ["a"]),
        ("([a-z]+-)*eu", ["eu", "a-b-eu"], ["a-b", "A-eu"]),
        ("é.[^a]", ["éaü", "éüb"], ["eaü", "éüa"]),
    ],
)
def test_expressions_match_whole_names(expression: str, matching: list[str], others: list[str]) -> None:
    pattern = LinearPattern(expression)
    assert [name for name in (*matching, *others) if pattern.matches(name)] == matching


@pytest.mark.parametrize(
    "expression",
    [
        *("(", ")", "(a", "a)", "[a", "[b-a]", "*a", "a**", "a{2}{3}", "a{1001}", "a{3,2}", "|*", "(?", "(?z)a", "\\"),
        *(r"(a)\1", "(?=a)", "(?!a)", "(?<=a)b", "(?<!a)b", r"\pL", r"\8", r"\xZZ", r"\x{110000000}", "[[:nope:]]"),
        *("(?P<>a)", "(?P<a-b>a)", "(?P<a", "(((a{100}){100}){100})", "a" * (PATTERN_CHARACTERS_MAX + 1), "(" * 500),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_reason(expression: str) -> None:
    with pytest.raises(PatternError) as error:
        LinearPattern(expression)
    assert str(error.value)


_ATOMS = st.sampled_from(["a", "b", "-", ".", "[ab]", "[^a]", r"\d", r"\w", r"\.", "^", "$", r"\b", "", "[a-c]"])
_EXPRESSIONS = st.recursive(
    _ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "*?", "{2,}"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=8,
)


@given(_EXPRESSIONS, st.lists(st.text("abc-.1", max_size=6), max_size=8))
def test_the_same_names_match_as_with_pythons_engine(expression: str, names: list[str]) -> None:
    ours, theirs = LinearPattern(expression), re.compile(expression, re.ASCII)
    assert [name for name in names if ours.matches(name)] == [name for name in names if theirs.fullmatch(name)]


@given(st.text(st.sampled_from("ab()[]{}|*+?^$\\.,1-:QEdpi<>P="), max_size=30), st.text("ab1-", max_size=10))
def test_any_text_is_read_or_refused(expression: str, name: str) -> None:
    try:
        pattern = LinearPattern(expression)
    except PatternError:
        return
    assert pattern.matches(name) in (True, False)


def test_expressions_that_make_others_backtrack_take_no_longer_than_the_name() -> None:
    pattern = LinearPattern("(a|a|aa)*(a*)*(a|a)*c")
    assert not pattern.matches("a" * 249)
    assert pattern.effort < 249 * 100


def test_internal_topics_match_no_expression() -> None:
    topics = Topics([Topic("__consumer_offsets", topic_id("o"), 1), Topic("__mine", topic_id("m"), 1)])
    assert topics.matching("__.*") == {"__mine"}
    assert topics.matching("(") == frozenset()
