"""Whether ACLs say what each user may do, and who needs none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from semel.broker.config.principal_rules import DEFAULT, MAPPING_RULES, PrincipalMapping
from semel.runtime.setting import ConfigError, PartConfig, setting

STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@dataclass(frozen=True)
class PermissionConfig(PartConfig):
    """What users may do."""

    authorizer_class_name: str = setting(
        "",
        "Who says what clients may do. Empty: all that are let in may do everything. Kafka's name of its authorizer: "
        "what ACLs allow, which `semel acl` makes. Set it to the same on all nodes.",
        choices=("", STANDARD_AUTHORIZER),
    )
    super_users: str = setting(
        "",
        "Users who may do everything, whatever ACLs say, as User:NAME with semicolons between. They make the first "
        "ACLs.",
    )
    allow_everyone_if_no_acl_found: bool = setting(
        False,
        "Whether everybody may do what they like with a resource that no ACL is about. With false nobody but the super "
        "users may.",
    )
    acls_max: int = setting(
        10_000,
        "ACLs of the cluster. More are refused with POLICY_VIOLATION: each change of one makes the table of all again, "
        "on each node.",
        minimum=1,
        maximum=100_000,
        dynamic=True,
    )
    ssl_principal_mapping_rules: str = setting(
        DEFAULT,
        "Which name ACLs have for the owner of a certificate, with commas between the rules: the first that is about "
        "its subject counts. RULE:PATTERN/REPLACEMENT/ makes a name of subjects that all of the pattern matches, with "
        "L or U behind it in lower or upper case; DEFAULT takes the subject as it is. Who has no rule is refused.",
    )
    audit_allowed_sample: float = setting(
        0.0,
        "Which share of what clients were allowed by ACLs the audit log tells, beside all changes and what was denied: "
        "0.01 is one in a hundred, 0 none, 1 all. At most 50 lines a minute.",
        minimum=0.0,
        maximum=1.0,
    )


def super_users_of(config: PermissionConfig) -> frozenset[str]:
    """Return the principals of the super users. Raises `ConfigError`."""
    users = frozenset(filter(None, (each.strip() for each in config.super_users.split(";"))))
    for user in users:
        user_type, _, name = user.partition(":")
        if not user_type or not name:
            raise ConfigError(
                f"super.users = {config.super_users}: {user} is no principal; write User:NAME, and semicolons between "
                "several"
            )
    return users


def check_permissions(config: PermissionConfig, *, asks_for_certificates: bool) -> None:
    """Raise `ConfigError` where nobody could ever make an ACL, or a setting would have no effect.

    asks_for_certificates: whether clients' certificates say who they are
    """
    if config.ssl_principal_mapping_rules != DEFAULT:
        PrincipalMapping(config.ssl_principal_mapping_rules)
        if not asks_for_certificates:
            raise ConfigError(
                f"{MAPPING_RULES} has no effect: no listener knows its clients by their certificates. Set "
                f"ssl.client.auth = required, with tls:// before an address, or leave {MAPPING_RULES} out"
            )
    users = super_users_of(config)
    if not config.authorizer_class_name:
        unused = [
            name
            for name, is_set in (
                ("super.users", bool(users)),
                ("allow.everyone.if.no.acl.found", config.allow_everyone_if_no_acl_found),
                (MAPPING_RULES, config.ssl_principal_mapping_rules != DEFAULT),
                ("audit.allowed.sample", config.audit_allowed_sample > 0),
            )
            if is_set
        ]
        if unused:
            raise ConfigError(
                f"{unused[0]} has no effect without authorizer.class.name = {STANDARD_AUTHORIZER}: set that too, or "
                f"leave {unused[0]} out"
            )
    elif not users and not config.allow_everyone_if_no_acl_found:
        raise ConfigError(
            "authorizer.class.name is set and super.users is not: nobody could make the first ACL. Set super.users = "
            "User:NAME"
        )
