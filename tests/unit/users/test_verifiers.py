"""What proves a password: as others compute it, and nothing else is taken for it."""

from __future__ import annotations

import pytest

from semel.broker.users.verifiers import parse_verifier, verifier_text
from semel.protocol.errors import UsageError
from semel.protocol.scram import ITERATIONS, ITERATIONS_MIN, make_verifier

PENCIL = (
    "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:"
    "wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
)
"""Of the password in the example of RFC 7677, as PostgreSQL writes it."""


def test_the_verifier_of_the_rfc_is_read_and_takes_its_password_alone() -> None:
    verifier = parse_verifier(PENCIL)
    assert verifier_text(verifier) == PENCIL
    assert verifier.accepts("pencil")
    for wrong in ("Pencil", "pencil ", "", "\0", "\ud800", "p" * 10_000):
        assert not verifier.accepts(wrong)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_what_is_made_is_read_again(mechanism: str) -> None:
    made = make_verifier(mechanism, "wonder=,land ß", ITERATIONS_MIN)
    assert parse_verifier(verifier_text(made)) == made
    assert made.accepts("wonder=,land ß")
    assert not made.accepts("wonderland")
    assert make_verifier(mechanism, "x").iterations == ITERATIONS
    assert make_verifier(mechanism, "x", ITERATIONS_MIN).salt != made.salt


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pencil", "no SCRAM-SHA-256 or SCRAM-SHA-512 verifier"),
        (PENCIL.replace("SHA-256", "SHA-1"), "no SCRAM-SHA-256 or SCRAM-SHA-512 verifier"),
        (PENCIL.replace("4096", "4095"), "4095 iterations"),
        (PENCIL.replace("4096", "9999999"), "9999999 iterations"),
        (PENCIL.replace("SHA-256", "SHA-512"), "wrong length"),
        (PENCIL.replace("W22ZaJ0SNY7soEsUEjb6gQ==", "W22ZaJ0SNY7soEsUEjb6gQ="), "not in base64"),
        (PENCIL[:-8] + "=", "wrong length"),
    ],
)
def test_what_is_no_verifier_is_refused_without_being_repeated(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        parse_verifier(text)
    assert text not in str(refused.value)
    assert "WG5d8" not in str(refused.value)


def test_a_verifier_does_not_show_itself() -> None:
    """In a traceback, say: passwords can be guessed with it."""
    verifier = parse_verifier(PENCIL)
    for text in (repr(verifier), str(verifier), f"{verifier}", repr([verifier])):
        assert "WG5d8" not in text


def test_a_password_that_no_client_could_send_is_refused() -> None:
    with pytest.raises(UsageError, match="the password can't be used"):
        make_verifier("SCRAM-SHA-256", "bell\a")
