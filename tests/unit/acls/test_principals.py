"""Who the owner of a certificate is, as Java writes it (RFC 2253), whatever the certificate has."""

from __future__ import annotations

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from semel.broker.acls.principals import der_of_pem, principal_of_certificate

KEY = ec.generate_private_key(ec.SECP256R1())
EMAIL = x509.NameAttribute(NameOID.EMAIL_ADDRESS, "me@x.org")


def certificate(*names: list[x509.NameAttribute]) -> x509.Certificate:
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    subject = x509.Name([x509.RelativeDistinguishedName(each) for each in names])
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(x509.Name([])).public_key(KEY.public_key())
    builder = builder.serial_number(7).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    return builder.sign(KEY, hashes.SHA256())


def named(oid: x509.ObjectIdentifier, value: str) -> list[x509.NameAttribute]:
    return [x509.NameAttribute(oid, value)]


@pytest.mark.parametrize(
    ("names", "owner"),
    [
        ([named(NameOID.ORGANIZATION_NAME, "org"), named(NameOID.COMMON_NAME, "me")], "CN=me,O=org"),
        (
            [
                named(NameOID.COUNTRY_NAME, "CH"),
                named(NameOID.STATE_OR_PROVINCE_NAME, "ZH"),
                named(NameOID.LOCALITY_NAME, "Z"),
                named(NameOID.ORGANIZATIONAL_UNIT_NAME, "u"),
                named(NameOID.DOMAIN_COMPONENT, "org"),
                named(NameOID.USER_ID, "7"),
            ],
            "UID=7,DC=org,OU=u,L=Z,ST=ZH,C=CH",
        ),
        ([named(NameOID.COMMON_NAME, 'a,b+c"d\\e<f>g;h#i=j')], r"CN=a\,b\+c\"d\\e\<f\>g\;h\#i\=j"),
        ([named(NameOID.COMMON_NAME, "  me ")], r"CN=\ \ me\ "),
        ([named(NameOID.COMMON_NAME, "ä ß")], "CN=ä ß"),
        (
            [[*named(NameOID.COMMON_NAME, "a"), *named(NameOID.ORGANIZATIONAL_UNIT_NAME, "b")]],
            None,
        ),
        ([[EMAIL]], "1.2.840.113549.1.9.1=#16086d6540782e6f7267"),
    ],
)
def test_the_owner_is_the_subject_as_java_writes_it(names: list[list[x509.NameAttribute]], owner: str | None) -> None:
    made = certificate(*names)
    der = made.public_bytes(Encoding.DER)
    found = principal_of_certificate(der)
    assert found == f"User:{owner}" if owner is not None else found in ("User:CN=a+OU=b", "User:OU=b+CN=a")
    assert der_of_pem(made.public_bytes(Encoding.PEM)) == der


@pytest.mark.parametrize("nothing", [None, b"", b"\x30", b"\x30\x82\xff\xff", bytes(40), b"\x31\x00"])
def test_what_is_no_certificate_names_nobody(nothing: bytes | None) -> None:
    assert principal_of_certificate(nothing) == "User:ANONYMOUS"
    assert der_of_pem(b"-----BEGIN CERTIFICATE-----") is None
    assert der_of_pem(nothing or b"") is None
