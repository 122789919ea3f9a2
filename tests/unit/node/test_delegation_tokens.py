"""Delegation tokens on a whole node (KIP-48): who makes them, who logs in with them, and when that ends."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from asking_node import MECHANISMS, at
from certificates import Authority, encrypted
from delegating_node import (
    SECRET,
    TOKEN_AUTH,
    ScramByHand,
    delegating,
    login_of,
    open_connection,
    prove,
    say,
    secret_file,
    shake_hands,
)
from live_node import LiveNode
from passing_numbers import PATIENCE_S, numbers_pass
from permitted_node import PERMITTED, acl, allow
from user_files import ALICE, PASSWORD, set_user

import semel
import semel.aio
from semel.broker.acls.rights import ALL_RIGHTS
from semel.broker.config.node_config import NodeConfig
from semel.broker.config.sources import check_config
from semel.broker.handlers import delegation_tokens as handler
from semel.broker.permitted.users import alter_users
from semel.broker.users.delegation import TokenSecret
from semel.protocol.delegation_tokens import HMAC_BYTES, NewDelegationToken, parts_of
from semel.protocol.errors import ErrorCode, FatalError
from semel.protocol.scram import Alteration, make_verifier
from semel.runtime.kafka_client.connection import Connection
from semel.runtime.setting import ConfigError
from semel.sdk.transport.options import Bootstrap
from semel.sdk.transport.security import Security

NOT_ALLOWED = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
FAILED = ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LiveNode]:
    users = set_user(set_user(tmp_path / "users"), "bob", PASSWORD)
    with LiveNode(tmp_path, **delegating(users)) as live:
        yield live


def made_by(node: LiveNode, user: str = ALICE, **options: Any) -> NewDelegationToken:
    with semel.Admin(at(node.bootstrap, user)) as admin:
        return admin.create_delegation_token(**options)


def refused(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(FatalError) as error:
        call()
    return error.value.code


def connected(node: LiveNode) -> Connection:
    found: Connection = node.run(lambda: open_connection(node.node.kafka_address))
    return found


def proven(node: LiveNode, user: str, password: str, mechanism: str = MECHANISMS[0], extensions: str = "") -> ErrorCode:
    """Return what a new connection of the Kafka listener is answered at the end of SCRAM."""

    async def test() -> ErrorCode:
        answer, _ = await prove(await open_connection(node.node.kafka_address), user, password, mechanism, extensions)
        return answer.error

    found: ErrorCode = node.run(test)
    return found


async def closes(connection: Connection) -> bool:
    async with asyncio.timeout(PATIENCE_S):
        while connection.is_open:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return True


def test_who_shows_a_token_is_its_owner_on_both_listeners(node: LiveNode) -> None:
    made = made_by(node)
    assert made.token.owner == made.token.requester == f"User:{ALICE}"
    assert len(made.hmac) == HMAC_BYTES
    for address in (node.bootstrap, node.node.kafka_address):
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            numbers_pass(at(address, *login_of(made), mechanism=mechanism))


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_clients_may_say_that_they_show_a_token_or_not(node: LiveNode, mechanism: str) -> None:
    token_id, password = login_of(made_by(node))
    for extensions in ("", TOKEN_AUTH, ",x=y", ",x=y,tokenauth=true", ",tokenauth=TRUE", ",tokenauth=false"):
        assert proven(node, token_id, password, mechanism, extensions) is ErrorCode.NONE, extensions


def test_S6_a_wrong_hmac_is_no_token(node: LiveNode) -> None:
    made, other = made_by(node), made_by(node)
    for password in (other.password, made.password[:-4], made.password + "=", made.password.lower(), PASSWORD, "\x01"):
        for extensions in ("", TOKEN_AUTH):
            assert proven(node, made.token.token_id, password, extensions=extensions) is FAILED
        with semel.Admin(at(node.bootstrap, made.token.token_id, password)) as admin:
            assert refused(admin.topics) is FAILED
    assert proven(node, made.token.token_id, made.password) is ErrorCode.NONE, "it was not the token"


def test_S6_a_user_is_no_token_and_a_token_no_password_of_plain(node: LiveNode) -> None:
    made = made_by(node)
    assert proven(node, ALICE, PASSWORD, extensions=TOKEN_AUTH) is FAILED, "alice is no token"
    assert proven(node, ALICE, PASSWORD, extensions=",tokenauth=false") is ErrorCode.NONE
    assert proven(node, *login_of(made), mechanism="PLAIN") is FAILED
    with semel.Admin(at(node.bootstrap)) as admin:
        admin.set_password(made.token.token_id, "of a user")
    assert proven(node, made.token.token_id, "of a user") is ErrorCode.NONE, "a user of this name comes first"
    assert proven(node, *login_of(made)) is FAILED
    assert proven(node, *login_of(made), extensions=TOKEN_AUTH) is ErrorCode.NONE


def test_S6_what_was_heard_of_a_login_can_not_be_said_again(node: LiveNode) -> None:
    made = made_by(node)

    async def test() -> None:
        first = await open_connection(node.node.kafka_address)
        await shake_hands(first)
        scram = ScramByHand(*login_of(made), extensions=TOKEN_AUTH)
        answer, _ = await say(first, scram.first)
        final = scram.final(answer.token)
        assert (await say(first, final))[0].error is ErrorCode.NONE
        again = await open_connection(node.node.kafka_address)
        await shake_hands(again)
        await say(again, scram.first)
        assert (await say(again, final))[0].error is FAILED

    node.run(test)


@pytest.mark.parametrize(
    "first",
    [
        b"n,,n=x" * 2000,
        b"n,,n=x,r=y,tokenauth",
        b"n,,n=x,r=y,tokenauth=true,",
        b"n,,r=y,tokenauth=true",
        b"n,,n=,r=y,tokenauth=true",
        b"n,,n=x,r=,tokenauth=true",
        b"\xff\xfe",
    ],
)
def test_S5_malformed_first_messages_fail_like_a_wrong_password(node: LiveNode, first: bytes) -> None:
    async def test() -> None:
        connection = await open_connection(node.node.kafka_address)
        await shake_hands(connection)
        answer, _ = await say(connection, first)
        assert answer.error is FAILED
        assert answer.message.startswith("authentication failed: wrong user or password")

    node.run(test)


def test_S6_what_was_begun_with_a_token_ends_when_it_is_taken_back(
    node: LiveNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.broker.listeners.grpc.authentication.LOOK_S", 0.05)
    with semel.Admin(at(node.bootstrap)) as admin:
        admin.create_topic("t", partitions=1)
        made, kept = admin.create_delegation_token(), admin.create_delegation_token()
        connections = [connected(node) for _ in range(2)]
        for connection, token in zip(connections, (made, kept), strict=True):
            login = login_of(token)
            assert node.run(lambda one=connection, its=login: prove(one, *its))[0].error is ErrorCode.NONE  # type: ignore[misc]
        with semel.Consumer(at(node.bootstrap, *login_of(made)), auto_offset_reset="earliest") as consumer:
            consumer.assign([semel.TopicPartition("t", 0)])
            with semel.Producer(at(node.bootstrap)) as producer:
                producer.send("t", b"v").result()
            assert next(iter(consumer)).value == b"v"
            admin.expire_delegation_token(made.token.token_id)
            assert refused(lambda: next(iter(consumer))) is FAILED
        assert node.run(lambda: closes(connections[0]))
        assert connections[1].is_open, "another token's"
        assert proven(node, *login_of(made)) is FAILED
        assert [each.token_id for each in admin.delegation_tokens()] == [kept.token.token_id]


def test_S6_a_connection_by_a_token_may_not_ask_for_tokens(node: LiveNode) -> None:
    made = made_by(node)
    with semel.Admin(at(node.bootstrap, *login_of(made))) as admin:
        assert admin.topics() == []
        for call in (
            admin.create_delegation_token,
            lambda: admin.renew_delegation_token(made.token.token_id),
            lambda: admin.expire_delegation_token(made.token.token_id),
            admin.delegation_tokens,
        ):
            assert refused(call) is NOT_ALLOWED


def test_S6_who_is_nobody_may_not_ask_for_tokens(tmp_path: Path) -> None:
    users = set_user(tmp_path / "users")
    settings = {**delegating(users), "grpc_listen": "127.0.0.1:0"}
    with LiveNode(tmp_path, **settings) as live, semel.Admin(live.bootstrap) as nobody:
        assert nobody.topics() == []
        assert refused(nobody.create_delegation_token) is NOT_ALLOWED
        assert refused(nobody.delegation_tokens) is NOT_ALLOWED


def test_the_owner_of_a_certificate_may_have_tokens(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    settings = {**delegating(set_user(tmp_path / "users")), **encrypted(authority.node(), authority)}
    settings["kafka_listen"] = "sasl://127.0.0.1:0"
    with LiveNode(tmp_path, **settings) as live:
        security = Security(authority.tls(authority.client()))
        with semel.Admin(Bootstrap((live.bootstrap,), security)) as admin:
            made = admin.create_delegation_token()
            assert made.token.owner.startswith("User:CN=")
            assert proven(live, *login_of(made), extensions=TOKEN_AUTH) is ErrorCode.NONE
            assert admin.delegation_tokens() == [made.token]
            admin.expire_delegation_token(made.token.token_id)
        assert proven(live, *login_of(made), extensions=TOKEN_AUTH) is FAILED


def test_renewers_renew_and_take_back_and_others_do_not(node: LiveNode) -> None:
    made = made_by(node, renewers=["User:bob"])
    other = made_by(node)
    with semel.Admin(at(node.bootstrap, "bob")) as bob, semel.Admin(at(node.bootstrap)) as alice:
        assert bob.renew_delegation_token(made.token.token_id) >= made.token.expiry_timestamp_ms
        assert bob.expire_delegation_token(made.token.token_id, after_ms=60_000) < made.token.expiry_timestamp_ms
        for call in (bob.renew_delegation_token, bob.expire_delegation_token):
            assert refused(lambda call=call: call(other.token.token_id)) is ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
            assert refused(lambda call=call: call("absent")) is ErrorCode.DELEGATION_TOKEN_NOT_FOUND
        bob.expire_delegation_token(made.token.token_id)
        assert [each.token_id for each in alice.delegation_tokens()] == [other.token.token_id]


def test_S6_a_token_goes_with_the_user_who_owns_it(node: LiveNode, tmp_path: Path) -> None:
    with semel.Admin(at(node.bootstrap)) as admin:
        admin.set_password("carl", "c")
        with semel.Admin(at(node.bootstrap, "carl", "c")) as carl:
            made = carl.create_delegation_token()
        of_bob = made_by(node, "bob")
        admin.set_password("carl", "another")
        assert proven(node, *login_of(made)) is ErrorCode.NONE, "another password leaves it as it is"
        connection = connected(node)
        assert node.run(lambda: prove(connection, *login_of(of_bob)))[0].error is ErrorCode.NONE
        admin.remove_user("carl")
        assert proven(node, *login_of(made)) is FAILED
        admin.set_password("carl", "a new carl")
        assert proven(node, *login_of(made)) is FAILED, "it was the former carl's"
        set_user(tmp_path / "users", "bob", None)
        assert node.run(lambda: closes(connection)), "bob is in the file no more"
        assert proven(node, *login_of(of_bob)) is FAILED


def test_S6_a_token_of_a_user_of_the_file_is_none_of_the_next_one_of_his_name(node: LiveNode, tmp_path: Path) -> None:
    """Also where the node never saw the file without him."""
    made = made_by(node, "bob")
    set_user(tmp_path / "users", "bob", "another")
    assert proven(node, *login_of(made)) is ErrorCode.NONE, "another password leaves it as it is"
    while node.node.clock.now_ms() <= made.token.issue_timestamp_ms:
        time.sleep(0.001)
    set_user(set_user(tmp_path / "users", "bob", None), "bob", PASSWORD)
    with semel.Admin(at(node.bootstrap, "bob")) as bob:
        assert proven(node, *login_of(made)) is FAILED, "it was the former bob's"
        assert proven(node, *login_of(bob.create_delegation_token())) is ErrorCode.NONE


def test_S6_a_token_of_a_user_of_the_file_is_none_of_a_user_of_the_cluster(node: LiveNode, tmp_path: Path) -> None:
    made = made_by(node, "bob")
    set_user(tmp_path / "users", "bob", None)
    with semel.Admin(at(node.bootstrap)) as admin:
        assert proven(node, *login_of(made)) is FAILED
        admin.set_password("bob", PASSWORD)
        assert proven(node, *login_of(made)) is FAILED, "it was the former bob's"
        assert node.node.metadata.image.delegation_tokens == {}


def test_tokens_without_a_user_are_told_and_removed(node: LiveNode, tmp_path: Path) -> None:
    made = made_by(node, "bob")
    made_by(node)
    with semel.Admin(at(node.bootstrap)) as admin:
        assert refused(lambda: admin.remove_user("bob")) is ErrorCode.RESOURCE_NOT_FOUND, "he is in the file"
        assert not [one for one in admin.diagnose().findings if one.kind.name == "token-without-user"]
        set_user(tmp_path / "users", "bob", None)
        assert proven(node, *login_of(made)) is FAILED
        (found,) = [one for one in admin.diagnose().findings if one.kind.name == "token-without-user"]
        assert (found.subject, found.commands) == ("User:bob", ("semel user remove bob",))
        assert made.token.token_id in found.what
        admin.remove_user("bob")
        assert [each.owner for each in node.node.metadata.image.delegation_tokens.values()] == [f"User:{ALICE}"]
        assert refused(lambda: admin.remove_user("bob")) is ErrorCode.RESOURCE_NOT_FOUND


def test_a_file_from_a_machine_whose_clock_is_a_little_ahead_ends_no_token(node: LiveNode, tmp_path: Path) -> None:
    added_in(tmp_path / "users", seconds=5)
    made = made_by(node, "bob")
    assert proven(node, *login_of(made)) is ErrorCode.NONE


def test_S6_a_user_who_is_added_in_the_future_makes_no_token(node: LiveNode, tmp_path: Path) -> None:
    """It would be good for who has his name after him, where that one's time is right."""
    added_in(tmp_path / "users", seconds=3600)
    with pytest.raises(semel.FatalError, match=r"the user bob is added 3\d\d\d s from now.* set the clocks"):
        made_by(node, "bob")


def added_in(path: Path, seconds: int) -> None:
    when = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()
    path.write_text(re.sub("added=[^ \n]*", f"added={when}", path.read_text()))


def test_S6_tokens_of_who_had_the_name_before_can_be_removed(node: LiveNode, tmp_path: Path) -> None:
    path = tmp_path / "users"
    made = made_by(node, "bob")
    set_user(set_user(path, "bob", None), "bob", PASSWORD)
    now = made_by(node, "bob")
    with semel.Admin(at(node.bootstrap)) as admin:
        admin.remove_user("bob")
    assert made.token.token_id not in node.node.metadata.image.delegation_tokens
    assert proven(node, *login_of(now)) is ErrorCode.NONE


def test_S3_many_users_in_one_request_do_not_each_look_through_all_tokens(
    node: LiveNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        made_by(node, "bob")
    looked: list[str] = []

    def counted(principal: str) -> tuple[str, str]:
        looked.append(principal)
        return parts_of(principal)

    monkeypatch.setattr(handler, "parts_of", counted)
    verifiers = (make_verifier("SCRAM-SHA-256", PASSWORD, 4096),)
    wanted = [(f"user{number}", Alteration(f"user{number}", verifiers, replaces=True)) for number in range(100)]
    assert set(node.run(lambda: alter_users(node.node, ALL_RIGHTS, wanted)).values()) == {None}
    assert 0 < len(looked) <= 5 * 3


def test_S5_the_mark_of_a_secret_tells_it_from_others_and_nothing_of_a_token() -> None:
    one, same, other = (TokenSecret(key) for key in (b"s" * 32, b"s" * 32, b"t" * 32))
    assert one.mark() == same.mark() != other.mark()
    assert len(one.mark()) == 16
    label = "mark of the secret of delegation tokens"
    assert one.mark() not in one.hmac(label[:22]).hex(), "a token's id has 22 characters"


def test_S7_a_token_for_somebody_else_takes_a_right(tmp_path: Path) -> None:
    users = set_user(set_user(set_user(tmp_path / "users"), "bob", PASSWORD), "admin", PASSWORD)
    with (
        LiveNode(tmp_path, **{**delegating(users), **PERMITTED}) as live,
        semel.Admin(at(live.bootstrap, "bob")) as bob,
        semel.Admin(at(live.bootstrap)) as alice,
    ):
        unauthorized = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
        assert refused(lambda: bob.create_delegation_token(owner=f"User:{ALICE}")) is unauthorized
        live.run(
            lambda: allow(
                live.node,
                acl("CREATE_TOKENS", f"user:User:{ALICE}", principal="User:bob"),
                acl("WRITE", "topic:of-alice", principal=f"User:{ALICE}"),
                acl("CREATE", "topic:of-alice", principal=f"User:{ALICE}"),
            )
        )
        made = bob.create_delegation_token(owner=f"User:{ALICE}")
        assert (made.token.owner, made.token.requester) == (f"User:{ALICE}", "User:bob")
        with semel.Admin(at(live.bootstrap, *login_of(made))) as admin:
            admin.create_topic("of-alice", partitions=1)
            assert refused(lambda: admin.create_topic("of-bob", partitions=1)) is (ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        own = alice.create_delegation_token()
        hidden = made_by(live, "admin")
        assert {each.token_id for each in alice.delegation_tokens()} == {made.token.token_id, own.token.token_id}
        assert [each.token_id for each in bob.delegation_tokens()] == [made.token.token_id], "he asked for it"
        live.run(lambda: allow(live.node, acl("DESCRIBE_TOKENS", "user:User:admin", principal="User:bob")))
        found = {each.token_id for each in bob.delegation_tokens()}
        assert found == {made.token.token_id, hidden.token.token_id}
        right = acl("DESCRIBE", f"delegation-token:{own.token.token_id}", principal="User:bob")
        live.run(lambda: allow(live.node, right))
        assert len(bob.delegation_tokens()) == 3
        assert [each.token_id for each in bob.delegation_tokens(["User:admin"])] == [hidden.token.token_id]


def test_S7_without_permissions_nobody_has_tokens_of_others(node: LiveNode) -> None:
    """They would be good when there are permissions, and could be those of an operator."""
    with semel.Admin(at(node.bootstrap, "bob")) as bob, semel.Admin(at(node.bootstrap)) as alice:
        unauthorized = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
        assert refused(lambda: bob.create_delegation_token(owner=f"User:{ALICE}")) is unauthorized
        own = alice.create_delegation_token(owner=f"User:{ALICE}")
        assert bob.delegation_tokens() == []
        assert [each.token_id for each in alice.delegation_tokens()] == [own.token.token_id]
        for name in ("*", "ANONYMOUS", "a\nb"):
            assert refused(lambda name=name: bob.create_delegation_token(owner=f"User:{name}")) is (  # type: ignore[misc]
                ErrorCode.INVALID_REQUEST
            )


def test_S2_tokens_and_their_renewers_are_bounded(node: LiveNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler, "TOKENS_OF_OWNER_MAX", 2)
    monkeypatch.setattr(handler, "TOKENS_MAX", 3)
    with semel.Admin(at(node.bootstrap)) as alice, semel.Admin(at(node.bootstrap, "bob")) as bob:
        mine = [alice.create_delegation_token() for _ in range(2)]
        with pytest.raises(FatalError, match="has 2 delegation tokens, of at most 2") as too_many:
            alice.create_delegation_token()
        assert too_many.value.code is ErrorCode.POLICY_VIOLATION
        bob.create_delegation_token()
        with pytest.raises(FatalError, match="the cluster has 3 delegation tokens, of at most 3"):
            bob.create_delegation_token()
        alice.expire_delegation_token(mine[0].token.token_id, after_ms=0)
        node.run(lambda: asyncio.sleep(0.01))
        bob.create_delegation_token()
        assert mine[0].token.token_id not in node.node.metadata.image.delegation_tokens, "it makes room"
        many = [f"User:{number}" for number in range(17)]
        with pytest.raises(FatalError, match="17 renewers of a delegation token are too many: name up to 16"):
            alice.create_delegation_token(renewers=many)
        for wrong in ("bob", "Group:bob", "User:", f"User:{'x' * 1025}"):
            code = refused(lambda wrong=wrong: alice.create_delegation_token(renewers=[wrong]))
            usual = ErrorCode.INVALID_REQUEST if wrong.startswith("User:") else ErrorCode.INVALID_PRINCIPAL_TYPE
            assert code is usual


def test_tokens_are_there_after_a_restart_and_expired_ones_are_removed(tmp_path: Path) -> None:
    users = set_user(tmp_path / "users")
    settings = delegating(users, metadata_snapshot_changes=1)
    with LiveNode(tmp_path, **settings) as live:
        made, gone = made_by(live), made_by(live)
    with LiveNode(tmp_path, **settings, delegation_token_expiry_check_interval_ms=20) as live:
        assert proven(live, *login_of(made), extensions=TOKEN_AUTH) is ErrorCode.NONE
        with semel.Admin(at(live.bootstrap)) as admin:
            admin.expire_delegation_token(gone.token.token_id, after_ms=1)

        async def removed() -> None:
            async with asyncio.timeout(PATIENCE_S):
                while gone.token.token_id in live.node.metadata.image.delegation_tokens:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

        live.run(removed)
        assert made.token.token_id in live.node.metadata.image.delegation_tokens
    without = {name: value for name, value in settings.items() if name != "delegation_token_secret_file"}
    with LiveNode(tmp_path, **without) as live:
        assert proven(live, *login_of(made), extensions=TOKEN_AUTH) is FAILED
        with semel.Admin(at(live.bootstrap)) as admin:
            assert refused(admin.delegation_tokens) is ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    secret_file(tmp_path, SECRET[::-1])
    with LiveNode(tmp_path, **settings) as live:
        assert proven(live, *login_of(made), extensions=TOKEN_AUTH) is FAILED, "made by another secret"


def test_S5_no_log_error_or_text_has_a_secret(node: LiveNode, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), semel.Admin(at(node.bootstrap)) as admin:
        made = admin.create_delegation_token(renewers=["User:bob"])
        admin.renew_delegation_token(made.token.token_id)
        proven(node, made.token.token_id, made.password + "wrong")
        proven(node, *login_of(made))
        admin.expire_delegation_token(made.token.token_id, after_ms=60_000)
        admin.expire_delegation_token(made.token.token_id)
        proven(node, *login_of(made))
    told = caplog.text + repr(made) + str(made) + repr(node.node.users.delegation) + repr(node.node.metadata.image)
    assert made.token.token_id in told
    for secret in (made.password, made.hmac.hex(), repr(made.hmac)[2:-1], SECRET.decode()):
        assert secret not in told
    audit = [record.message for record in caplog.records if record.name == "semel.audit"]
    changes = [line for line in audit if line.startswith("delegation_token.")]
    assert [line.split(":")[0].removeprefix("delegation_token.") for line in changes] == [
        "created", "renewed", "expired", "expired",
    ]  # fmt: skip
    assert all(f"principal='User:{ALICE}'" in line and made.token.token_id in line for line in changes)


def test_the_asyncio_client_does_the_same(node: LiveNode) -> None:
    async def main() -> None:
        async with semel.aio.Admin(at(node.bootstrap)) as admin:
            made = await admin.create_delegation_token(max_lifetime_ms=60_000)
            assert made.token.max_timestamp_ms - made.token.issue_timestamp_ms == 60_000
            assert made.token.expiry_timestamp_ms == made.token.max_timestamp_ms
            assert await admin.delegation_tokens() == [made.token]
            assert await admin.renew_delegation_token(made.token.token_id) == made.token.max_timestamp_ms
            await admin.expire_delegation_token(made.token.token_id)
            assert await admin.delegation_tokens() == []

    asyncio.run(main())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kafka_listen": "127.0.0.1:0", "grpc_listen": "127.0.0.1:0", "sasl_users_location": ""}, "no listener asks"),
        ({"sasl_enabled_mechanisms": ("PLAIN",)}, "clients show delegation tokens by SCRAM-SHA-256"),
        ({"delegation_token_secret_file": "", "delegation_token_expiry_time_ms": 5}, "has no effect without"),
    ],
)
def test_S6_settings_that_do_not_fit_together_are_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    settings = delegating(set_user(tmp_path / "users"))
    check_config(NodeConfig(**settings))
    with pytest.raises(ConfigError, match=said):
        check_config(NodeConfig(**{**settings, **change}))


def test_S6_a_node_whose_secret_can_not_be_read_does_not_start(tmp_path: Path) -> None:
    settings = delegating(set_user(tmp_path / "users"))
    (tmp_path / "delegation-secret").unlink()
    with pytest.raises(ConfigError, match="can't be read"), LiveNode(tmp_path, **settings):
        pass


@pytest.mark.parametrize("secret", [b"", b"short" * 6, b"x" * 4097])
def test_S5_a_secret_of_a_wrong_size_is_refused_without_being_repeated(tmp_path: Path, secret: bytes) -> None:
    settings = delegating(set_user(tmp_path / "users"))
    secret_file(tmp_path, secret)
    with pytest.raises(ConfigError, match="has 32 to 4096 bytes") as error, LiveNode(tmp_path, **settings):
        pass
    assert "short" not in str(error.value)
