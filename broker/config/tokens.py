"""Which tokens listeners with `sasl://` or `tls+sasl://` take: JWTs that somebody else signs (OAUTHBEARER)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from semel.protocol.int_bounds import INT32_MAX
from semel.protocol.loopback import is_loopback
from semel.runtime.setting import ConfigError, PartConfig, setting

OAUTHBEARER: Final = "OAUTHBEARER"
KEYS_URL: Final = "sasl.oauthbearer.jwks.endpoint.url"
ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
"""All that a public key checks. With HMAC who can check a token could make one as well."""


@dataclass(frozen=True)
class TokenConfig(PartConfig):
    """Tokens of the listeners with `sasl://` and `tls+sasl://`, with OAUTHBEARER among sasl.enabled.mechanisms."""

    sasl_oauthbearer_jwks_endpoint_url: str = setting(
        "",
        "Where the public keys are that tokens are signed with (JWKS): file:///PATH, read again when it changes, or "
        "https://HOST/PATH, asked again every sasl.oauthbearer.jwks.endpoint.refresh.ms, and for a key that is not "
        "known yet.",
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = setting(
        3_600_000, "How often keys are asked for again by https.", unit="ms", minimum=1_000, maximum=INT32_MAX
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = setting(
        100,
        "How long after a failure keys are asked for again; twice as long after each further one.",
        unit="ms",
        minimum=10,
        maximum=INT32_MAX,
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = setting(
        10_000,
        "The longest wait between two attempts to get keys.",
        unit="ms",
        minimum=10,
        maximum=INT32_MAX,
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] = setting(
        (), "Tokens are for one of these (the claim aud), and for nobody else. Set it to this cluster's own name."
    )
    sasl_oauthbearer_expected_issuer: str = setting("", "Who makes the tokens (the claim iss). Empty: not looked at.")
    sasl_oauthbearer_clock_skew_seconds: int = setting(
        30, "How far the clocks of who makes tokens and of this node may be apart.", unit="s", minimum=0, maximum=600
    )
    sasl_oauthbearer_sub_claim_name: str = setting("sub", "The claim that names the user: ACLs know it as User:NAME.")
    sasl_oauthbearer_scope_claim_name: str = setting(
        "scope", "The claim with a token's scopes: a list, or text with spaces between. Looked at for required.scope."
    )
    sasl_oauthbearer_required_scope: str = setting("", "A scope that every token must have. Empty: none.")
    sasl_oauthbearer_allowed_algorithms: tuple[str, ...] = setting(
        ALGORITHMS, "How tokens may be signed.", choices=ALGORITHMS
    )


def keys_file(config: TokenConfig) -> str:
    """Return the path of the file with the keys; empty where they are got by https. Raises `ConfigError`."""
    url = config.sasl_oauthbearer_jwks_endpoint_url
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname or "", parts.port
    except ValueError:
        raise _no_url(url) from None
    if parts.username or parts.password:
        raise ConfigError(f"{KEYS_URL} has a user or a password in it: keys are public, leave it out")
    if parts.scheme == "file" and host in ("", "localhost") and parts.path.startswith("/"):
        return unquote(parts.path)
    if parts.scheme == "http" and host and not is_loopback(host):
        raise ConfigError(f"{KEYS_URL} = {url}: somebody on the way could give other keys; write https://")
    if parts.scheme not in ("https", "http") or not host:
        raise _no_url(url)
    return ""


def _no_url(url: str) -> ConfigError:
    return ConfigError(f"{KEYS_URL} = {url[:200]} is neither file:///PATH nor https://HOST/PATH")


def check_tokens(config: TokenConfig, *, are_taken: bool) -> None:
    """Raise `ConfigError` where settings of tokens lack something, or have no effect.

    are_taken: whether a listener takes tokens
    """
    if not are_taken:
        names = [name for name, default in _DEFAULTS.items() if getattr(config, name.replace(".", "_")) != default]
        if names:
            raise ConfigError(
                f"{names[0]} has no effect: no listener takes tokens. Have {OAUTHBEARER} among sasl.enabled.mechanisms "
                f"and write tls+sasl:// before an address, or leave {names[0]} out"
            )
        return
    if not config.sasl_oauthbearer_jwks_endpoint_url:
        raise ConfigError(
            f"{OAUTHBEARER} needs {KEYS_URL}: where the public keys are that tokens are signed with, as "
            "https://HOST/PATH or file:///PATH"
        )
    keys_file(config)
    if not config.sasl_oauthbearer_expected_audience and not config.sasl_oauthbearer_required_scope:
        raise ConfigError(
            f"{OAUTHBEARER} needs sasl.oauthbearer.expected.audience, the name of this cluster in tokens: others that "
            "get tokens of the same issuer could use them here. Where tokens have no audience, set "
            "sasl.oauthbearer.required.scope"
        )
    if not config.sasl_oauthbearer_allowed_algorithms:
        raise ConfigError("sasl.oauthbearer.allowed.algorithms is empty: use RS256 or ES256, as your issuer does")
    for name in ("sub", "scope"):
        if not getattr(config, f"sasl_oauthbearer_{name}_claim_name"):
            raise ConfigError(f"sasl.oauthbearer.{name}.claim.name is empty: name a claim, usually {name}")
    is_usual = config.sasl_oauthbearer_scope_claim_name == "scope"
    if not config.sasl_oauthbearer_required_scope and not is_usual:
        raise ConfigError(
            "sasl.oauthbearer.scope.claim.name has no effect without sasl.oauthbearer.required.scope: leave it out"
        )


_DEFAULTS: Final = {
    name: getattr(TokenConfig(), name.replace(".", "_"))
    for name in ("sasl.oauthbearer.jwks.endpoint.url", "sasl.oauthbearer.expected.audience",
                 "sasl.oauthbearer.expected.issuer", "sasl.oauthbearer.required.scope",
                 "sasl.oauthbearer.scope.claim.name", "sasl.oauthbearer.sub.claim.name",
                 "sasl.oauthbearer.clock.skew.seconds", "sasl.oauthbearer.allowed.algorithms")
}  # fmt: skip
