"""What groups have captured, and what is put in the place of matches: as a backtracking engine does it."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.runtime.captures import Effort, EffortError, Replacement
from semel.runtime.linear_regex import PatternError

ENOUGH = 1_000_000

atoms = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\w", "ä", "=", "(a|ab)", "(?:b|ba)", "(b)", "(a.?)"])
repetitions = st.sampled_from(["", "", "", "*", "+", "?", "*?", "+?", "??", "{1,2}", "{2}", "{1,2}?", "{1,}?"])
sequences = st.lists(st.tuples(atoms, repetitions).map("".join), min_size=1, max_size=4).map("".join)
grouped = st.lists(st.tuples(st.sampled_from(["", "^"]), sequences, st.sampled_from(["", "$"])).map("".join),
                   min_size=1, max_size=3).map("|".join)  # fmt: skip
expressions = grouped | st.tuples(sequences, grouped, sequences).map(lambda each: f"{each[0]}({each[1]}){each[2]}")


def by_backtracking(expression: str, text: str) -> str:
    """Each match of Python's engine, and what its groups have; after an empty one the next character, as in Java."""
    pattern, made, copied, position = re.compile(expression, re.ASCII), "", 0, 0
    while position <= len(text) and (found := pattern.search(text, position)):
        made += f"{text[copied : found.start()]}<{found[0]}|{','.join(each or '' for each in found.groups())}>"
        copied = found.end()
        position = copied + (found.start() == copied)
    return made + text[copied:]


@given(expressions, st.text("abä=c", max_size=12))
def test_groups_have_what_a_backtracking_engine_finds(expression: str, text: str) -> None:
    count = re.compile(expression).groups
    replacement = f"<$0|{','.join(f'${number}' for number in range(1, count + 1))}>"
    assert Replacement(expression, replacement).apply(text, Effort(ENOUGH)) == by_backtracking(expression, text)


@pytest.mark.parametrize(
    ("expression", "replacement", "text", "made"),
    [
        ("a(b)(c)", "$2$1", "xabcy", "xcby"),
        ("(?<first>a)b", "${first}!", "ab", "a!"),
        ("(a)", "$12", "a", "a2"),  # as many digits as make a group
        ("(a)", "$7", "a", "$7"),  # Kafka: there is no such group, so it is a text
        ("(a)", r"\$1\\", "a", "$1\\"),
        ("(a)", "$0$0", "a", "aa"),
        (".*", "x", "abc", "xx"),  # there is an empty match at the end
        ("b*", "-", "abc", "-a--c-"),  # as `replaceAll` of Java
        ("(?i)A(B)", "$1", "ab", "b"),
        ("(a)?b", "[$1]", "b", "[]"),
    ],
)
def test_matches_are_replaced_as_java_does_it(expression: str, replacement: str, text: str, made: str) -> None:
    assert Replacement(expression, replacement).apply(text, Effort(ENOUGH)) == made


@pytest.mark.parametrize(
    ("expression", "replacement", "told"),
    [
        ("a", "$1", "refers to $1, and the pattern has no group"),
        ("(a)", "${name}", "refers to a group 'name', of which there is none"),
        ("(a)", "$", "a number or a {name} follows each $"),
        ("(a)", "x\\", "a character each backslash"),
        ("(?<x>a)(?<x>b)", "", "two groups are called x"),
        ("(?m)a", "", "'(?m' is not known here"),
        (r"(a)\1", "", r"the escape '\1' is not known here"),
        ("a(?=b)", "", "'(?=' is not known here"),
    ],
)
def test_what_can_t_be_meant_is_refused(expression: str, replacement: str, told: str) -> None:
    with pytest.raises(PatternError) as raised:
        Replacement(expression, replacement)
    assert told in str(raised.value)


def test_S3_effort_grows_with_the_text_alone_and_has_a_bound() -> None:
    hostile = Replacement("(a*)*(a|aa)*$", "$1")
    took = []
    for size in (100, 200, 400):
        effort = Effort(ENOUGH)
        hostile.apply("a" * size, effort)
        took.append(ENOUGH - effort.left)
    assert all(later <= 3 * earlier for earlier, later in pairwise(took)), took
    with pytest.raises(EffortError):
        hostile.apply("a" * 1_000, Effort(1_000))
