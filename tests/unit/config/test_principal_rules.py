"""`ssl.principal.mapping.rules`: names for the owners of certificates, as Kafka makes them (KIP-371)."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.broker.config import principal_rules
from semel.broker.config.node_config import NodeConfig
from semel.broker.config.permissions import STANDARD_AUTHORIZER
from semel.broker.config.principal_rules import NAME_MAX, PrincipalMapping
from semel.broker.config.sources import check_config
from semel.runtime.setting import ConfigError

EXAMPLES = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, "
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L, "
    "RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U, "
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, "
    "DEFAULT"
)


@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        # Kafka's own.
        (EXAMPLES, "CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        (EXAMPLES, "CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        (EXAMPLES, "cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        (EXAMPLES, "cN=duke,OU=JavaSoft,O=Sun Microsystems", "DUKE"),
        (EXAMPLES, "OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
        (
            r"RULE:^CN=((\\, *|\w)+)(,.*|$)/$1/,DEFAULT",
            r"CN=Tkac\, Adam,OU=ITZ,DC=geodis,DC=cz",
            r"Tkac\, Adam",
        ),
        ("RULE:^CN=([^,DEFAULT,]+)(,.*|$)/$1/", "CN=me,O=x", "me"),
        # How rules are told apart.
        (" ,, RULE:CN=a/x,y/ ,  ,DEFAULT,", "CN=a", "x,y"),
        ("RULE:CN=a,RULE:b/x/", "CN=a,RULE:b", "x"),
        (r"RULE:CN=a\/b/x\/y/", "CN=a/b", "x/y"),
        ("RULE:CN=a/ x /", "CN=a", " x "),
        # All of a subject has to match; where some of it does, all that does is replaced.
        ("RULE:CN=a/x/", "CN=a,O=b", None),
        ("RULE:CN=a|CN=a,O=b/x/", "CN=a,O=b", "x,O=b"),
        ("RULE:.*/x/", "CN=a", "xx"),
        ("RULE:CN=(.*)/$1/U,RULE:O=(.*)/$1/L", "O=Ab", "ab"),
        ("", "CN=a", None),
    ],
)
def test_a_subject_gets_the_name_that_kafka_gives_it(rules: str, subject: str, name: str | None) -> None:
    mapping = PrincipalMapping(rules)
    assert mapping.name_of(subject) == name
    assert mapping.name_of(subject) == name  # also where it is remembered


@pytest.mark.parametrize(
    "rule",
    [
        "default",
        "DEFAUL",
        "DEFAULT/L",
        "RULE:CN=(.*?),OU=ServiceUsers.*/$1",
        "rule:^CN=(.*?),OU=ServiceUsers.*$/$1/",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L/U",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/L",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/LU",
        "RULE:CN=(a/$1/",
        r"RULE:CN=(a)\1/$1/",
        "RULE:CN=a/$1/",
        "RULE:CN=([À-ÿ]+)/$1/",
        "RULE:CN=([^À-ÿ]+)/staff/",
        "RULE:CN=([a-z&&[^b]]+)/$1/",
    ],
)
def test_S5_a_wrong_rule_is_named(rule: str) -> None:
    with pytest.raises(ConfigError) as raised:
        PrincipalMapping(f"DEFAULT, {rule}")
    assert f"ssl.principal.mapping.rules: rule 2, {rule.partition(',')[0]}" in raised.value.message


parts = st.text("aB=,*/\\ä ", max_size=6)


@given(st.lists(st.tuples(parts, parts, st.sampled_from("LU ")), max_size=4), parts)
def test_the_first_rule_whose_pattern_is_the_subject_counts(rules: list[tuple[str, str, str]], subject: str) -> None:
    def literal(text: str) -> str:
        return re.sub(r"([\\/$*])", r"\\\1", text)

    text = ",".join(f"RULE:{literal(pattern)}/{literal(made)}/{case.strip()}" for pattern, made, case in rules)
    expected = next(((made, case) for pattern, made, case in rules if pattern == subject), None)
    name = None
    if expected is not None:
        made, case = expected
        name = made.lower() if case == "L" else made.upper() if case == "U" else made
    assert PrincipalMapping(text).name_of(subject) == name


def test_S3_no_subject_is_looked_at_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    mapping = PrincipalMapping(r"RULE:^(\w*|[^=]*)*(a|aa|b)*CN=((a|aa)*)$/$3/,DEFAULT")
    assert mapping.name_of("a" * (NAME_MAX + 1)) is None
    assert mapping.name_of("CN=aa") == "aa"
    monkeypatch.setattr(principal_rules, "EFFORT_MAX", 300)
    assert mapping.name_of("CN=" + "a" * 100) is None  # and not the name that DEFAULT gives
    assert len(mapping._known) == 2


def test_S2_subjects_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(principal_rules, "_REMEMBERED_MAX", 3)
    mapping = PrincipalMapping("DEFAULT")
    assert [mapping.name_of(f"CN={number}") for number in range(9)] == [f"CN={number}" for number in range(9)]
    assert list(mapping._known) == ["CN=6", "CN=7", "CN=8"]


TLS = {"ssl_certificate_location": "node.pem", "ssl_key_location": "node.key", "grpc_listen": "tls://127.0.0.1:0"}
CERTIFICATES = {"ssl_client_auth": "required", "ssl_ca_location": "ca.pem", **TLS}
PERMISSIONS = {"authorizer_class_name": STANDARD_AUTHORIZER, "super_users": "User:admin"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({**CERTIFICATES}, "ssl.principal.mapping.rules has no effect without authorizer.class.name"),
        ({**TLS, **PERMISSIONS}, "no listener knows its clients by their certificates"),
        (
            {
                **CERTIFICATES,
                **PERMISSIONS,
                "grpc_listen": "tls+sasl://127.0.0.1:0",
                "sasl_users_location": "users",
            },
            "no listener knows its clients by their certificates",
        ),
        ({**CERTIFICATES, **PERMISSIONS, "ssl_principal_mapping_rules": "RULE:(/x/"}, "rule 1, RULE:(/x/"),
    ],
)
def test_S5_rules_without_an_effect_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check_config(NodeConfig(**{"ssl_principal_mapping_rules": "RULE:CN=(.*)/$1/", **settings}))
    assert said in raised.value.message
    check_config(NodeConfig(**CERTIFICATES, **PERMISSIONS, ssl_principal_mapping_rules="RULE:CN=(.*)/$1/"))
