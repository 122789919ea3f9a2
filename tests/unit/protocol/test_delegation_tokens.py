"""Delegation tokens as messages and changes of the metadata carry them, and what is none."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.broker.metadata.chain import Position
from semel.broker.metadata.changes import (
    DelegationTokensChanged,
    MetadataCorruptError,
    decode_change,
    encode_change,
)
from semel.broker.metadata.image import EMPTY_IMAGE, decode_image, encode_image
from semel.broker.users.delegation import TokenSecret
from semel.protocol.delegation_token_messages import token_message, token_of
from semel.protocol.delegation_tokens import DelegationToken, NewDelegationToken, check_principal, principal_of
from semel.protocol.errors import FatalError
from semel.protocol.int_bounds import INT64_MAX
from semel.protocol.v1 import delegation_tokens_pb2

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
TIMES = st.integers(0, INT64_MAX)
TOKENS = st.builds(
    DelegationToken,
    NAMES,
    NAMES.map("User:{}".format),
    NAMES.map("User:{}".format),
    st.lists(NAMES.map("User:{}".format), max_size=3).map(tuple),
    TIMES,
    TIMES,
    TIMES,
    st.booleans(),
)
TOKEN = DelegationToken("id", "User:alice", "User:bob", ("User:carl",), 1, 2, 10, True)


@given(TOKENS)
def test_a_token_is_the_same_after_its_message_a_change_and_a_snapshot(token: DelegationToken) -> None:
    data = token_message(token).SerializeToString()
    read = token_of(delegation_tokens_pb2.DelegationToken.FromString(data))
    assert read == replace(token, ends_with_user=False), "that is the nodes' own affair"
    change = DelegationTokensChanged((token,), ("gone",))
    assert decode_change(*encode_change(change)) == change
    image = EMPTY_IMAGE.apply(DelegationTokensChanged((token,)), Position(1, "d"))
    assert decode_image(encode_image(image), image.digest) == image


@pytest.mark.parametrize("place", range(8))
@pytest.mark.parametrize("damage", [None, {}, 1.5])
def test_what_is_no_token_is_corrupt(place: int, damage: object) -> None:
    kind, payload = encode_change(DelegationTokensChanged((TOKEN,)))
    data = json.loads(payload)
    data["stored"][0][place] = damage
    with pytest.raises(MetadataCorruptError):
        decode_change(kind, json.dumps(data))


def test_a_token_that_is_not_there_can_not_be_removed() -> None:
    with pytest.raises(MetadataCorruptError, match="'gone', which is not there"):
        EMPTY_IMAGE.apply(DelegationTokensChanged(removed=("gone",)), Position(1, "d"))


@pytest.mark.parametrize(
    "text", ["", "alice", "Group:x", "User", "User:", "user:x", f"User:{'x' * 1025}", "User:\ud800" * 200]
)
def test_what_is_no_owner_is_refused(text: str) -> None:
    with pytest.raises(FatalError):
        check_principal(text)


def test_an_owner_is_a_user() -> None:
    assert principal_of("User", "CN=me,O=org") == "User:CN=me,O=org"
    for kind, name in (("Group", "x"), ("User:a", "b"), ("", "x"), ("User", "")):
        with pytest.raises(FatalError):
            principal_of(kind, name)


def test_S5_secrets_are_in_no_text_and_are_not_copied() -> None:
    secret, made = TokenSecret(b"hunter2!" * 4), NewDelegationToken(TOKEN, b"hunter2!" * 8)
    for item in (secret, made):
        assert "hunter2" not in f"{item!r} {item} {[item]}"
        assert made.password not in f"{item!r} {item} {[item]}"
    with pytest.raises(TypeError):
        pickle.dumps(secret)


def test_S6_hmacs_and_salts_of_tokens_have_nothing_in_common() -> None:
    one, other = TokenSecret(b"s" * 32), TokenSecret(b"t" * 32)
    made = {each.hmac(name) for each in (one, other) for name in ("a", "b")}
    made |= {each.salt(by, name) for each in (one, other) for by in ("SCRAM-SHA-256", "SCRAM-SHA-512") for name in "ab"}
    assert len(made) == 12
    assert one.hmac("a") == TokenSecret(b"s" * 32).hmac("a"), "each node makes the same"
