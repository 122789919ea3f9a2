"""What is wrong with an address of a listener that can't be read, and how it is written.

People bring Kafka's spellings, those of URLs, and those of other programs.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from semel.protocol.schemes import SASL_PREFIX, SCHEMES, TLS_PREFIX, TLS_SASL_PREFIX, scheme_of, without_scheme

_KAFKAS: Final = {
    "plaintext": "",
    "ssl": TLS_PREFIX,
    "sasl_plaintext": SASL_PREFIX,
    "sasl_ssl": TLS_SASL_PREFIX,
    "sasl+tls": TLS_SASL_PREFIX,
    "tls": TLS_PREFIX,
    "sasl": SASL_PREFIX,
    "tls+sasl": TLS_SASL_PREFIX,
    "http": "",
    "https": TLS_PREFIX,
    "tcp": "",
    "grpc": "",
    "grpcs": TLS_PREFIX,
    "kafka": "",
}
"""What other programs call it, in lower case, and what stands for it here."""
_FOREIGN: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9_+.-]*)://(?P<rest>.*)", re.DOTALL)
_SLASHES: Final = re.compile(r"(?P<scheme>tls|sasl|tls\+sasl)(?::/?(?!/)|//)(?P<rest>.+:[0-9]+)")
_EXAMPLE: Final = "127.0.0.1:9092"
_SHOWN: Final = 100


def why_wrong(text: str) -> str:
    """Return what is wrong with an address that is not HOST:PORT, as the end of a sentence, with a right one.

    >>> why_wrong("SASL_SSL://0.0.0.0:9092")
    'it begins with SASL_SSL://, which is tls+sasl:// here: write tls+sasl://0.0.0.0:9092'
    >>> why_wrong("log1")
    'it has no port: write log1:9092, with the port that you mean'
    """
    scheme, rest = scheme_of(text), without_scheme(text)
    if "," in rest:
        return (
            "it has a comma: several listeners are items of kafka.listeners or grpc.listeners, each with a name "
            "(--kafka NAME=ADDRESS again and again); and what is advertised stands behind a question mark, "
            f"{_cut(text.partition(',')[0])}?advertised=HOST:PORT"
        )
    foreign = _FOREIGN.fullmatch(rest)
    if foreign is not None:
        return _of_scheme(foreign["scheme"], foreign["rest"], is_second=bool(scheme))
    slashes = _SLASHES.fullmatch(text)
    if slashes is not None:
        return f"a scheme ends with ://: write {slashes['scheme']}://{_cut(slashes['rest'].lstrip('/'))}"
    if "?" in rest:
        return (
            "options stand behind the address of a listener that has a name: write "
            f"external={_cut(scheme + rest.partition('?')[0])}?..."
        )
    host, colon, port = rest.rpartition(":")
    if "@" in rest:
        return f"it has a user in it, and users are in none of the addresses: write {scheme}{_EXAMPLE}"
    if "/" in rest:
        return f"it has a slash behind the scheme: write {_cut(scheme + rest.partition('/')[0]) or _EXAMPLE}"
    if any(letter.isspace() for letter in rest):
        return f"it has a space in it: write {_cut(scheme + ''.join(rest.split()))}"
    if _is_ipv6(host) and _is_number(port):
        return f"an IPv6 address stands in brackets: write {scheme}[{host}]:{port}"
    if _is_ipv6(rest):
        return f"an IPv6 address stands in brackets, and a port behind them: write {scheme}[{rest}]:9092"
    if _is_number(rest):
        return f"it is a port without a host: write {scheme}127.0.0.1:{_cut(rest)}, or the address to listen on"
    if not colon or rest.endswith("]"):
        return f"it has no port: write {scheme}{_cut(rest) or '127.0.0.1'}:9092, with the port that you mean"
    if host in ("", "*"):
        what = "* is no host" if host else "it has no host"
        return f"{what}: write {scheme}0.0.0.0:{_cut(port) or '9092'} for all addresses of the machine"
    if not _is_number(port):
        what = f"{_cut(port)!r} is no port" if port else "it has no port"
        return f"{what}: write {scheme}{_cut(host)}:9092, with the port that you mean"
    if len(port) > 5 or int(port) > 65_535:
        return f"{_cut(port)} is no port: ports are 0 to 65535, for example {scheme}{_cut(host)}:9092"
    return f"write {scheme}HOST:PORT, for example {scheme}{_EXAMPLE}; an IPv6 address stands in brackets"


def _of_scheme(name: str, rest: str, *, is_second: bool) -> str:
    address = f"0.0.0.0{_cut(rest)}" if rest.startswith(":") else _cut(rest) or _EXAMPLE  # noqa: S104 (told)
    if is_second:
        return f"it has two schemes, and takes one of {', '.join(SCHEMES)}: write {name.lower()}://{address}"
    here = _KAFKAS.get(name.lower())
    if here is None:
        return (
            f"{_cut(name)}:// is no scheme here: write {address}, with {TLS_PREFIX} before it to encrypt and "
            f"{TLS_SASL_PREFIX} to ask for passwords, too. Where it is the listener's name, as in Kafka, that is "
            f"{_cut(name.lower())}={address}"
        )
    means = f"which is {here} here" if here else "which is nothing here"
    return f"it begins with {_cut(name)}://, {means}: write {here}{address}"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _is_ipv6(text: str) -> bool:
    try:
        return text.count(":") > 1 and ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


def _cut(text: str) -> str:
    return text[:_SHOWN]
