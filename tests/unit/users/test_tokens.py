"""Which tokens are right: signed by a known key, for this cluster, by this issuer, now; and what all others are not."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from token_issuer import Issuer, keys_of

from semel.broker.config.node_config import NodeConfig
from semel.broker.users import tokens as tokens_module
from semel.broker.users.token_keys import NO_KEYS, TokenKeys, parse_keys
from semel.broker.users.tokens import TOKEN_BYTES_MAX, TokenError, Tokens
from semel.protocol.errors import RetriableError
from semel.runtime.setting import ConfigError


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path)


def tokens_of(issuer: Issuer, **more: Any) -> Tokens:
    return Tokens(NodeConfig(**issuer.settings(**more)))


def refusal(tokens: Tokens, text: str) -> str:
    with pytest.raises(TokenError) as raised:
        asyncio.run(tokens.check(text))
    assert not text or text not in str(raised.value)
    return str(raised.value)


def part(value: Any) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@pytest.mark.parametrize("algorithm", ["RS256", "RS512", "PS384", "ES256"])
def test_a_right_token_names_its_user_until_it_ends(issuer: Issuer, algorithm: str) -> None:
    token = asyncio.run(tokens_of(issuer).check(issuer.token(algorithm=algorithm)))
    assert token.subject == "alice"
    assert token.is_current
    assert 590_000 < token.left_ms() <= 600_000


HOUR = 3_600
WRONG: dict[str, tuple[Callable[[Issuer], str], str]] = {
    "over": (lambda issuer: issuer.token(lasts_s=-5), "ExpiredSignatureError"),
    "not yet": (lambda issuer: issuer.token(nbf=int(time.time()) + HOUR), "ImmatureSignatureError"),
    "made later": (lambda issuer: issuer.token(iat=int(time.time()) + HOUR), "ImmatureSignatureError"),
    "without an end": (lambda issuer: issuer.token(exp=None), "MissingRequiredClaimError"),
    "without a beginning": (lambda issuer: issuer.token(iat=None), "MissingRequiredClaimError"),
    "another audience": (lambda issuer: issuer.token(aud="others"), "InvalidAudienceError"),
    "without an audience": (lambda issuer: issuer.token(aud=None), "MissingRequiredClaimError"),
    "another issuer": (lambda issuer: issuer.token(iss="https://mallory.example.com"), "InvalidIssuerError"),
    "without an issuer": (lambda issuer: issuer.token(iss=None), "MissingRequiredClaimError"),
    "another key": (lambda issuer: issuer.token(key=issuer.other_rsa), "InvalidSignatureError"),
    "another key's name": (lambda issuer: issuer.token(headers={"kid": "k1"}), "is not for RS256"),
    "an unknown key": (lambda issuer: issuer.token(headers={"kid": "k9"}), "there is no key 'k9'"),
    "without a key": (
        lambda issuer: jwt.encode({"sub": "alice"}, issuer.rsa, "RS256"), "there is no key 'None'"
    ),
    "without a signature": (lambda issuer: jwt.encode({"sub": "alice"}, "", "none"), "no JWT with a signature"),
    "without a user": (lambda issuer: issuer.token(sub=None), "names no user"),
    "a number for a user": (lambda issuer: issuer.token(sub=7), "names no user"),
    "an empty user": (lambda issuer: issuer.token(""), "names no user"),
    "a long user": (lambda issuer: issuer.token("x" * 256), "names no user"),
    "a hidden user": (lambda issuer: issuer.token("alice\0"), "that nobody sees"),
    "a user of no width": (lambda issuer: issuer.token("admin\u200b"), "that nobody sees"),
    "a user written backwards": (lambda issuer: issuer.token("\u202enimda"), "that nobody sees"),
    "a user behind a space": (lambda issuer: issuer.token(" admin"), "that nobody sees"),
    "a text for an end": (lambda issuer: issuer.token(exp=str(int(time.time()) + HOUR)), "exp is no time"),
    "an endless end": (lambda issuer: issuer.token(exp=float("inf")), "exp) must be an integer"),
    "critical": (lambda issuer: issuer.token(headers={"crit": ["x"], "x": 1}), ""),
    "not a token": (lambda issuer: "x", "no JWT with a signature"),
    "nothing": (lambda issuer: "", "no JWT with a signature"),
    "no JSON": (lambda issuer: f"{part(b'{')}.{part({})}.AA", "DecodeError"),
    "deep": (lambda issuer: f"{part(b'[' * 6_000)}.{part({})}.AA", ""),
    "deep inside": (lambda issuer: issuer.token(deep=json.loads("[" * 300 + "]" * 300), aud="others"), ""),
    "huge": (lambda issuer: issuer.token(more="x" * TOKEN_BYTES_MAX), "bytes; at most"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_S6_any_other_token_is_refused(issuer: Issuer, what: str) -> None:
    make, why = WRONG[what]
    assert why in refusal(tokens_of(issuer), make(issuer))


def test_S6_a_public_key_is_never_the_secret_of_a_signature(issuer: Issuer) -> None:
    """Who knows the public key would sign with it, where a token said which algorithm counts."""
    for secret in (
        issuer.rsa.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        issuer.rsa.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        issuer.path.read_bytes(),
    ):
        signed = f"{part({'alg': 'HS256', 'kid': 'k0'})}.{issuer.token().split('.')[1]}"
        mac = hmac.digest(secret, signed.encode(), hashlib.sha256)
        assert "signed by 'HS256', which is not allowed" in refusal(tokens_of(issuer), f"{signed}.{part(mac)}")
    token = issuer.token().split(".")
    for name in ("none", "None", "nOnE", "HS512", "", None, 7, ["RS256"]):
        assert "not allowed" in refusal(tokens_of(issuer), f"{part({'alg': name, 'kid': 'k0'})}.{token[1]}.{token[2]}")
    only = tokens_of(issuer, sasl_oauthbearer_allowed_algorithms=("ES256",))
    assert "not allowed" in refusal(only, issuer.token())
    assert asyncio.run(only.check(issuer.token(algorithm="ES256"))).subject == "alice"


@given(st.data())
def test_S6_a_token_of_which_anything_is_changed_is_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    issuer = Issuer(tmp_path_factory.getbasetemp())
    tokens = tokens_of(issuer)
    text = issuer.token()
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from("ABCZaz019-_.="))
    changed = text[:at] + other + text[at + 1 :]
    decoded = [base64.urlsafe_b64decode(each + "==") for each in text.split(".")]
    try:
        same = [base64.urlsafe_b64decode(each + "==") for each in changed.split(".")] == decoded
    except ValueError:
        same = False
    if same:  # the last bits of a part in base64 count for nothing
        return
    refusal(tokens, changed)


def test_clocks_may_be_apart_and_claims_have_other_names(issuer: Issuer) -> None:
    late = tokens_of(issuer, sasl_oauthbearer_clock_skew_seconds=60)
    token = asyncio.run(late.check(issuer.token(lasts_s=-5)))
    assert token.is_current
    assert token.left_ms() == 1, "0 would mean that it never ends"
    named = tokens_of(issuer, sasl_oauthbearer_sub_claim_name="client_id")
    assert asyncio.run(named.check(issuer.token(sub=None, client_id="app"))).subject == "app"
    scoped = tokens_of(issuer, sasl_oauthbearer_required_scope="kafka", sasl_oauthbearer_scope_claim_name="scp")
    for scopes in ("openid kafka", ["kafka"]):
        assert asyncio.run(scoped.check(issuer.token(scp=scopes))).subject == "alice"
    for none in (None, "kafkas", "", ["x"], {"kafka": 1}, 7):
        assert "has not the scope kafka" in refusal(scoped, issuer.token(scp=none))


def test_S6_a_token_that_was_right_is_not_for_longer_than_it_lasts(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, text = tokens_of(issuer), issuer.token()
    token = asyncio.run(tokens.check(text))
    assert tokens.known(text) is token
    later = time.time() + 601
    monkeypatch.setattr(tokens_module.time, "time", lambda: later)
    assert not token.is_current
    assert tokens.known(text) is None


def test_S6_keys_are_read_again_as_their_file_changes(issuer: Issuer) -> None:
    tokens, first = tokens_of(issuer), issuer.token()
    asyncio.run(tokens.check(first))
    issuer.publish(issuer.other_rsa)
    assert tokens.known(first) is None
    assert "InvalidSignatureError" in refusal(tokens, first)
    second = issuer.token(key=issuer.other_rsa)
    assert asyncio.run(tokens.check(second)).subject == "alice"
    issuer.path.write_text("{")  # it may be written just now
    assert tokens.known(second) is not None


def test_S6_a_token_whose_key_is_taken_back_is_over(issuer: Issuer) -> None:
    """Whoever has stolen a key may have signed what ends in thirty years: sessions end with the key."""
    tokens = tokens_of(issuer)
    token = asyncio.run(tokens.check(issuer.token(lasts_s=30 * 365 * 86_400)))
    issuer.publish(issuer.rsa)
    assert token.is_current, "the same key, though it was read again"
    issuer.publish(issuer.other_rsa)
    assert not token.is_current


def test_a_token_that_ends_in_the_far_future_has_a_lifetime_that_can_be_sent(issuer: Issuer) -> None:
    for end in (10**18, 1e308):
        assert asyncio.run(tokens_of(issuer).check(issuer.token(exp=end))).left_ms() == 1000 << 31


def test_S2_what_is_remembered_and_what_waits_is_bounded(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens_module, "_REMEMBERED_MAX", 2)
    tokens = tokens_of(issuer)
    for number in range(5):
        asyncio.run(tokens.check(issuer.token(jti=str(number))))
    assert len(tokens._right) == 2
    tokens._checks = tokens_module._CHECKS_MAX
    with pytest.raises(RetriableError, match="too many tokens"):
        asyncio.run(tokens.check(issuer.token()))


def test_a_token_without_a_key_s_name_is_checked_by_the_only_key(issuer: Issuer) -> None:
    nameless = jwt.encode(jwt.decode(issuer.token(), options={"verify_signature": False}), issuer.rsa, "RS256")
    assert "there is no key 'None'" in refusal(tokens_of(issuer), nameless)
    issuer.publish(issuer.rsa)
    assert asyncio.run(tokens_of(issuer).check(nameless)).subject == "alice"


def changed(issuer: Issuer, **fields: Any) -> bytes:
    entry = {**keys_of(issuer.rsa)["keys"][0], **fields}
    return json.dumps({"keys": [{name: value for name, value in entry.items() if value is not None}]}).encode()


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda issuer: b"", "it is not JSON"),
        (lambda issuer: b"[" * 100_000, "it is not JSON"),
        (lambda issuer: b"[]", 'it has no list "keys"'),
        (lambda issuer: b'{"keys": {}}', 'it has no list "keys"'),
        (lambda issuer: b'{"keys": [7, {}]}', "no public key that checks signatures"),
        (lambda issuer: b" " * ((1 << 20) + 1), "it has more than"),
        (lambda issuer: json.dumps({"keys": [{}] * 101}).encode(), "it has 101 keys"),
        (lambda issuer: changed(issuer, kty="oct", k="c2VjcmV0"), "no public key that checks signatures"),
        (lambda issuer: changed(issuer, use="enc"), "no public key that checks signatures"),
        (lambda issuer: changed(issuer, alg="HS256"), "no public key that checks signatures"),
        (lambda issuer: changed(issuer, n="AQAB"), "can't be used"),
        (lambda issuer: changed(issuer, n=7), "can't be used"),
    ],
)  # fmt: skip
def test_S5_a_file_without_keys_to_use_is_told(issuer: Issuer, made: Callable[[Issuer], bytes], said: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse_keys(made(issuer))
    assert said in str(raised.value)
    issuer.path.write_bytes(made(issuer))
    with pytest.raises(ConfigError, match=r"sasl\.oauthbearer\.jwks\.endpoint\.url = file:///"):
        TokenKeys(NodeConfig(**issuer.settings()))


def test_a_key_that_can_t_be_used_is_left_out_and_the_others_count(issuer: Issuer) -> None:
    """Otherwise one odd key among many would keep everybody out as keys change."""
    good = keys_of(issuer.rsa, issuer.ec)["keys"]
    odd = [{**good[0], "kid": "short", "n": "AQAB"}, {**good[1], "kid": "broken", "x": "AQAB"}, good[0]]
    keys = parse_keys(json.dumps({"keys": [*odd, *good]}).encode())
    assert len(keys) == 2
    named_alike = [{**each, "kid": "same", "use": None} for each in good]
    keys = parse_keys(json.dumps({"keys": named_alike}).encode())
    for algorithm in ("RS256", "ES256"):
        key = keys.find("same", algorithm)
        assert key is not None
        assert algorithm in key.algorithms


def test_S6_a_private_key_is_not_taken_for_a_public_one(issuer: Issuer) -> None:
    entry = {**jwt.algorithms.RSAAlgorithm.to_jwk(issuer.rsa, as_dict=True), "kid": "k0", "use": "sig"}
    entry.pop("key_ops", None)
    with pytest.raises(ValueError, match="it is a private key"):
        parse_keys(json.dumps({"keys": [entry]}).encode())
    assert len(NO_KEYS) == 0
