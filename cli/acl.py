"""`semel acl`: who may do what."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Annotated, Final

import typer

from semel.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    ExitCode,
    command_app,
    confirm,
    counted,
    examples,
    fail,
    fails_well,
    open_admin,
    print_json,
    print_table,
)
from semel.cli.live import watchable
from semel.cli.moving import Yes
from semel.protocol.acls import (
    CLUSTER_NAME,
    OPERATIONS,
    WILDCARD,
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
)
from semel.protocol.errors import UsageError

app = command_app("Add, list and remove ACLs: who may do what with which topics, groups and transactional ids.")

_TOPIC, _GROUP, _CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
_TRANSACTION = ResourceType.TRANSACTIONAL_ID
_PRODUCER: Final = {
    _TOPIC: (AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE),
    _TRANSACTION: (AclOperation.WRITE, AclOperation.DESCRIBE),
}
_CONSUMER: Final = {_TOPIC: (AclOperation.READ, AclOperation.DESCRIBE), _GROUP: (AclOperation.READ,)}
_Pattern = tuple[ResourceType, str, PatternType]


def _several(name: str, metavar: str, help_text: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(name, metavar=metavar, help=help_text, show_default=False)
    return option


Topics = Annotated[list[str] | None, _several("--topic", "NAME", "A topic, or '*' for all. May be given again.")]
TopicPrefixes = Annotated[
    list[str] | None, _several("--topic-prefix", "PREFIX", "All topics whose names begin so. May be given again.")
]
Groups = Annotated[list[str] | None, _several("--group", "NAME", "A group, or '*' for all. May be given again.")]
GroupPrefixes = Annotated[
    list[str] | None, _several("--group-prefix", "PREFIX", "All groups whose names begin so. May be given again.")
]
Transactions = Annotated[
    list[str] | None,
    _several("--transactional-id", "NAME", "A transactional id, or '*' for all. May be given again."),
]
TransactionPrefixes = Annotated[
    list[str] | None,
    _several("--transactional-id-prefix", "PREFIX", "All transactional ids that begin so. May be given again."),
]
Cluster = Annotated[bool, typer.Option("--cluster", help="The cluster itself: its nodes, settings and ACLs.")]
Tokens = Annotated[
    list[str] | None,
    _several("--delegation-token", "ID", "A delegation token, or '*' for all. May be given again."),
]
Owners = Annotated[
    list[str] | None,
    _several("--user-principal", "User:NAME", "A user whose delegation tokens it is about, or '*' for all."),
]
Operations = Annotated[
    list[str] | None,
    _several("--operation", "NAME[,NAME...]", "What is done: read, write, describe, create, delete, alter, all, ..."),
]
Hosts = Annotated[list[str] | None, _several("--host", "ADDRESS", "Only from this IP address. May be given again.")]


@app.command(
    epilog=examples(
        "semel acl add --allow User:alice --producer --topic orders",
        "semel acl add --allow User:bob --consumer --topic orders --group billing",
        "semel acl add --allow User:etl --operation read,write --topic-prefix etl-",
        "semel acl add --allow User:etl --operation write --transactional-id etl",
        "semel acl add --allow User:scheduler --operation create_tokens --user-principal User:etl",
        "semel acl add --deny User:mallory --operation all --topic '*' --host 10.0.0.7",
    )
)
@fails_well
def add(
    allow: Annotated[
        list[str] | None, _several("--allow", "User:NAME", "Who may. User:* is everybody. May be given again.")
    ] = None,
    deny: Annotated[
        list[str] | None,
        _several("--deny", "User:NAME", "Who may not, whatever else is allowed. May be given again."),
    ] = None,
    operation: Operations = None,
    producer: Annotated[
        bool,
        typer.Option(
            "--producer",
            help="What a producer needs: write, describe, create on topics; write, describe on transactional ids.",
        ),
    ] = False,
    consumer: Annotated[
        bool,
        typer.Option("--consumer", help="What a consumer needs: read and describe on topics, and read on groups."),
    ] = False,
    topic: Topics = None,
    topic_prefix: TopicPrefixes = None,
    group: Groups = None,
    group_prefix: GroupPrefixes = None,
    transactional_id: Transactions = None,
    transactional_id_prefix: TransactionPrefixes = None,
    delegation_token: Tokens = None,
    user_principal: Owners = None,
    cluster: Cluster = False,
    host: Hosts = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Allow somebody to do something, or deny it.

    What no ACL allows is refused, and what one denies is refused whatever others allow. Who may read, write, delete or
    alter something may also describe it. An ACL that there is already stays.
    """
    patterns = _patterns(
        topic,
        topic_prefix,
        group,
        group_prefix,
        transactional_id,
        transactional_id_prefix,
        delegation_token,
        user_principal,
        cluster,
    )
    if not allow and not deny:
        raise UsageError("say who: --allow User:NAME, or --deny User:NAME")
    if not patterns:
        raise UsageError("say with what: --topic, --group, --transactional-id or --cluster")
    made: list[Acl] = []
    for kind, name, pattern in patterns:
        for each in _operations_for(kind, _operations(operation), producer, consumer):
            for permission, principals in ((AclPermission.ALLOW, allow), (AclPermission.DENY, deny)):
                made += (
                    Acl(kind, name, pattern, principal, address, each, permission).check()
                    for principal, address in itertools.product(principals or (), host or (WILDCARD,))
                )
    _check_hosts(host or ())
    with open_admin(bootstrap) as admin:
        admin.create_acls(made)
    for acl in made:
        print(acl)


@app.command("list", epilog=examples("semel acl list", "semel acl list --principal User:alice --json"))
@fails_well
@watchable
def list_acls(
    principal: Annotated[
        str | None, _several("--principal", "User:NAME", "Only those of this user; User:* are everybody's.")
    ] = None,
    topic: Topics = None,
    group: Groups = None,
    transactional_id: Transactions = None,
    delegation_token: Tokens = None,
    user_principal: Owners = None,
    cluster: Cluster = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """List ACLs: all, or those that decide about a topic, group or transactional id, with prefixes that match it."""
    named = _patterns(topic, None, group, None, transactional_id, None, delegation_token, user_principal, cluster)
    filters = [AclFilter(kind, name, PatternType.MATCH, principal) for kind, name, _ in named]
    with open_admin(bootstrap) as admin:
        found = list(
            dict.fromkeys(acl for each in filters or [AclFilter(principal=principal)] for acl in admin.acls(each))
        )
    if as_json:
        print_json([_as_json(acl) for acl in found])
        return
    print_table(
        ["principal", "may", "operation", "resource", "name", "pattern", "host"],
        [
            (
                acl.principal,
                "yes" if acl.permission is AclPermission.ALLOW else "no",
                acl.operation.name.lower(),
                acl.resource_type.name.lower().replace("_", "-"),
                acl.name,
                acl.pattern.name.lower(),
                acl.host,
            )
            for acl in found
        ],
        empty="no ACLs",
    )


@app.command(
    epilog=examples(
        "semel acl remove --principal User:alice --topic orders",
        "semel acl remove --principal User:alice --all --yes",
    )
)
@fails_well
def remove(
    principal: Annotated[
        str | None, _several("--principal", "User:NAME", "Of this user; User:* are everybody's. Without it: of all.")
    ] = None,
    operation: Operations = None,
    topic: Topics = None,
    topic_prefix: TopicPrefixes = None,
    group: Groups = None,
    group_prefix: GroupPrefixes = None,
    transactional_id: Transactions = None,
    transactional_id_prefix: TransactionPrefixes = None,
    delegation_token: Tokens = None,
    user_principal: Owners = None,
    cluster: Cluster = False,
    host: Hosts = None,
    everything: Annotated[bool, typer.Option("--all", help="About everything, of the user that --principal names.")] = (
        False
    ),
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Remove ACLs with just these patterns. A denial that is removed may let somebody in."""
    patterns: Sequence[_Pattern] = _patterns(
        topic,
        topic_prefix,
        group,
        group_prefix,
        transactional_id,
        transactional_id_prefix,
        delegation_token,
        user_principal,
        cluster,
    )
    if everything and principal is None:
        raise UsageError("--all removes what one user has: name it with --principal User:NAME")
    if everything == bool(patterns):
        raise UsageError("say which: --topic, --group, --transactional-id or --cluster; or --all")
    filters = [
        AclFilter(kind, name, pattern, principal, address, each)
        for kind, name, pattern in patterns or ((ResourceType.ANY, None, PatternType.ANY),)
        for address in host or (None,)
        for each in _operations(operation) or (AclOperation.ANY,)
    ]
    with open_admin(bootstrap) as admin:
        found = list(dict.fromkeys(acl for each in filters for acl in admin.acls(each)))
        if not found:
            raise fail("no ACL is like that: `semel acl list` shows those there are", ExitCode.REFUSED)
        if not yes:
            for acl in found:
                print(acl)
            confirm(f"Remove {counted(len(found), 'ACL')}?")
        removed = admin.delete_acls(filters)
    print(f"{counted(len(removed), 'ACL')} removed")


def _patterns(
    topics: Iterable[str] | None,
    topic_prefixes: Iterable[str] | None,
    groups: Iterable[str] | None,
    group_prefixes: Iterable[str] | None,
    transactions: Iterable[str] | None,
    transaction_prefixes: Iterable[str] | None,
    tokens: Iterable[str] | None,
    owners: Iterable[str] | None,
    cluster: bool,
) -> list[_Pattern]:
    literal, prefixed = PatternType.LITERAL, PatternType.PREFIXED
    given = (
        (_TOPIC, literal, topics),
        (_TOPIC, prefixed, topic_prefixes),
        (_GROUP, literal, groups),
        (_GROUP, prefixed, group_prefixes),
        (_TRANSACTION, literal, transactions),
        (_TRANSACTION, prefixed, transaction_prefixes),
        (ResourceType.DELEGATION_TOKEN, literal, tokens),
        (ResourceType.USER, literal, owners),
        (_CLUSTER, literal, (CLUSTER_NAME,) if cluster else ()),
    )
    return [(kind, name, pattern) for kind, pattern, names in given for name in names or ()]


def _operations(given: Iterable[str] | None) -> list[AclOperation]:
    found: list[AclOperation] = []
    for name in (each.strip() for text in given or () for each in text.split(",")):
        word = name.upper().replace("-", "_")
        if word not in AclOperation.__members__ or word in ("UNKNOWN", "ANY"):
            known = ", ".join(each.name.lower() for each in AclOperation if each.name not in ("UNKNOWN", "ANY"))
            raise UsageError(f"{name!r} is no operation: there are {known}")
        found.append(AclOperation[word])
    return list(dict.fromkeys(found))


def _operations_for(
    kind: ResourceType, named: Sequence[AclOperation], producer: bool, consumer: bool
) -> list[AclOperation]:
    """Return what is allowed or denied with one kind of resource."""
    possible = OPERATIONS[kind]
    found = [each for each in named if each is AclOperation.ALL or each in possible]
    if len(found) < len(named):
        wrong = next(each for each in named if each not in found)
        words = ", ".join(each.name.lower() for each in possible)
        raise UsageError(f"nothing does {wrong.name.lower()} with a {_word(kind)}: there are {words}, all")
    for is_asked, needs in ((producer, _PRODUCER), (consumer, _CONSUMER)):
        if is_asked:
            found += needs.get(kind, ())
    if not found:
        raise UsageError(
            f"say what may be done with the {_word(kind)}: --operation"
            + (
                ", for neither --producer nor --consumer needs it"
                if producer or consumer
                else ", --producer, --consumer"
            )
        )
    return list(dict.fromkeys(found))


def _word(kind: ResourceType) -> str:
    return kind.name.lower().replace("_", " ")


def _check_hosts(hosts: Iterable[str]) -> None:
    import ipaddress

    for host in hosts:
        try:
            if host != WILDCARD:
                ipaddress.ip_address(host)
        except ValueError:
            raise UsageError(f"--host {host}: give an IP address, because names are not looked up") from None


def _as_json(acl: Acl) -> dict[str, str]:
    return {
        "resource_type": acl.resource_type.name,
        "name": acl.name,
        "pattern": acl.pattern.name,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation.name,
        "permission": acl.permission.name,
    }
