"""`make check` and `make audit` find what they look for: committed secrets, and known faults of dependencies."""

from __future__ import annotations

from typing import Any

import audit
import pytest
from committed_secrets import OF_TESTS, SIGNS, secrets_in


def drawn(letters: int) -> str:
    """Letters of a secret that is none."""
    return ("f00dcafe12345678" * 4)[:letters]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("a private key", "-----BEGIN " + "RSA PRIVATE KEY-----"),
        ("a private key", "-----BEGIN " + "PRIVATE KEY-----"),
        ("a key of AWS", "AKIA" + drawn(16).upper()),
        ("a token of GitHub", "ghp_" + drawn(36)),
        ("a token of GitLab", "glpat-" + drawn(20)),
        ("a token of PyPI", "pypi-" + drawn(50)),
        ("a token of Slack", "xoxb-" + drawn(12)),
        ("a key of Google", "AIza" + drawn(35)),
        ("a JWT", f"eyJ{drawn(20)}.eyJ{drawn(20)}.{drawn(20)}"),
        ("a password in an address", f"postgresql://me:{drawn(8)}@host/db"),
        ("a password", f'password = "{drawn(14)}"'),
        ("a password", f'"api_key": "{drawn(14)}"'),
    ],
)
def test_S5_what_looks_like_a_secret_is_found_with_its_line(kind: str, text: str) -> None:
    assert list(secrets_in(f"first\n{text}\nlast")) == [(2, kind)]


def test_what_tests_and_examples_have_in_place_of_passwords_is_none() -> None:
    assert not list(secrets_in("\n".join(f"postgresql://me:{name}@host/db" for name in OF_TESTS - {"wonder=,land"})))
    assert not list(secrets_in('PASSWORD = "wonder=,land"'))
    assert not list(secrets_in("password = read(file)  # of 12 letters or more"))
    assert len(SIGNS) == 10, "each kind has its case above"


FAULT = {"id": "PYSEC-1", "fix_versions": ["2.0"]}


@pytest.mark.parametrize(
    ("packages", "code", "told"),
    [
        ([{"name": "a", "version": "1", "vulns": []}], 0, "no fault is known"),
        ([{"name": "a", "version": "1", "vulns": [FAULT]}], 1, "a 1: PYSEC-1, fixed in 2.0"),
        ([{"name": "a", "skip_reason": "not found"}], 2, "1 of 1 packages could not be looked up"),
        ([{"name": "b", "version": "1", "vulns": []}, {"name": "a", "skip_reason": "x"}], 2, "NOT audited"),
        ([], 2, "NOT audited"),
    ],
)
def test_an_audit_that_could_not_look_anything_up_is_no_success(
    packages: list[dict[str, Any]], code: int, told: str
) -> None:
    found, text = audit.verdict({"dependencies": packages})
    assert found == code
    assert told in text
