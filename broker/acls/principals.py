"""Who somebody is, as ACLs name it: the user of a password, or the owner of a certificate.

The owner is the certificate's subject in the form of RFC 2253, as Apache Kafka has it from Java: `CN=me,O=org`, the
last part of the certificate first. It is read from the certificate itself, so that both listeners say the same.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from semel.protocol.acls import ANONYMOUS

if TYPE_CHECKING:
    from semel.broker.config.principal_rules import PrincipalMapping

USER: Final = "User:"
_SEQUENCE: Final = 0x30
_SET: Final = 0x31
_OID: Final = 0x06
_VERSION: Final = 0xA0
_FIELDS_BEFORE_SUBJECT: Final = 4
"""Serial number, algorithm, issuer, validity."""
_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
"""What RFC 2253 has words for; others are written with their numbers."""
_ENCODINGS: Final = {
    0x0C: "utf-8",
    0x13: "ascii",
    0x14: "latin-1",
    0x16: "ascii",
    0x1B: "latin-1",
    0x1C: "utf-32-be",
    0x1E: "utf-16-be",
}
_ESCAPED: Final = frozenset(',=+<>#;"\\')
_PEM_BEGIN: Final = b"-----BEGIN CERTIFICATE-----"
_PEM_END: Final = b"-----END CERTIFICATE-----"


def principal_of_user(name: str) -> str:
    """Return the principal of a user with a password."""
    return USER + name


def principal_of_certificate(der: bytes | None, mapping: PrincipalMapping | None = None) -> str | None:
    """Return the principal of a client's certificate, which has been checked; ANONYMOUS for none.

    mapping: what makes a name of its subject; None is returned where it gives it none
    """
    if not der:
        return ANONYMOUS
    try:
        subject = _subject(der)
    except (IndexError, ValueError):  # what nobody can read names nobody
        return ANONYMOUS if mapping is None else None
    name = subject if mapping is None else mapping.name_of(subject)
    return None if name is None else USER + name


def der_of_pem(pem: bytes) -> bytes | None:
    """Return the first certificate of a text in PEM; None where it has none."""
    _, found, rest = pem.partition(_PEM_BEGIN)
    body, ended, _ = rest.partition(_PEM_END)
    if not found or not ended:
        return None
    try:
        return base64.b64decode(body)
    except ValueError:
        return None


def _subject(der: bytes) -> str:
    certificate = _content(der, _SEQUENCE)
    fields = list(_parts(_content(certificate, _SEQUENCE)))
    if fields[0][0] == _VERSION:
        fields = fields[1:]
    _, names, _ = fields[_FIELDS_BEFORE_SUBJECT]
    relative = [content for tag, content, _ in _parts(names) if tag == _SET]
    return ",".join("+".join(_attribute(content) for _, content, _ in _parts(each)) for each in reversed(relative))


def _attribute(content: bytes) -> str:
    (tag, number, _), (kind, value, whole) = _parts(content)
    if tag != _OID:
        raise ValueError("an attribute without its number")
    oid = _dotted(number)
    keyword, encoding = _KEYWORDS.get(oid), _ENCODINGS.get(kind)
    if keyword is None or encoding is None:
        return f"{keyword or oid}=#{whole.hex()}"
    return f"{keyword}={_escaped(value.decode(encoding))}"


def _escaped(text: str) -> str:
    escaped = "".join("\\" + each if each in _ESCAPED else "\\00" if each == "\0" else each for each in text)
    begin = len(escaped) - len(escaped.lstrip(" \r"))
    end = len(escaped.rstrip(" \r"))
    return "".join("\\" + each if not begin <= at < end else each for at, each in enumerate(escaped))


def _dotted(number: bytes) -> str:
    arcs, value = [], 0
    for byte in number:
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            arcs.append(value)
            value = 0
    first = min(arcs[0] // 40, 2)
    return ".".join(map(str, (first, arcs[0] - 40 * first, *arcs[1:])))


def _content(data: bytes, wanted: int) -> bytes:
    tag, content, _ = next(_parts(data))
    if tag != wanted:
        raise ValueError("no certificate")
    return content


def _parts(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield what lies one after the other in DER: tag, content, and all of it with both."""
    position = 0
    while position < len(data):
        begin, tag, size = position, data[position], data[position + 1]
        position += 2
        if size & 0x80:
            count = size & 0x7F
            size = int.from_bytes(data[position : position + count], "big")
            position += count
        if position + size > len(data):
            raise ValueError("a part goes beyond its end")
        yield tag, data[position : position + size], data[begin : position + size]
        position += size
