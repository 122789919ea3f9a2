"""What `Admin` asks of nodes about users. Any node takes changes. Passwords are hashed here, and not sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from semel.protocol.errors import UsageError
from semel.protocol.scram import (
    CREDENTIAL_ITERATIONS_MAX,
    ITERATIONS_MIN,
    MECHANISM_NAMES,
    SCRAM_MECHANISMS,
    UserDescription,
    check_user_name,
    make_verifiers,
)
from semel.protocol.user_messages import verifier_message
from semel.protocol.v1 import users_pb2
from semel.sdk.transport import rpcs as rpc
from semel.sdk.transport.item_errors import check_item
from semel.sdk.transport.login import PASSWORD_BYTES_MAX

if TYPE_CHECKING:
    from semel.sdk.transport.control import Control


async def set_password(control: Control, user: str, password: str, mechanisms: Sequence[str], iterations: int) -> None:
    check_user_name(user)
    if not password or len(password.encode("utf-8", "surrogatepass")) > PASSWORD_BYTES_MAX:
        raise UsageError(f"a password has 1 to {PASSWORD_BYTES_MAX} bytes")
    if isinstance(mechanisms, str) or not mechanisms or not set(mechanisms) <= set(SCRAM_MECHANISMS):
        raise UsageError(f"mechanisms are some of {', '.join(SCRAM_MECHANISMS)}")
    if not ITERATIONS_MIN <= iterations <= CREDENTIAL_ITERATIONS_MAX:
        raise UsageError(f"{iterations} iterations: {ITERATIONS_MIN} to {CREDENTIAL_ITERATIONS_MAX} are taken")
    verifiers = make_verifiers(password, tuple(dict.fromkeys(mechanisms)), iterations)
    made = users_pb2.AlterUserCredentialsRequest.Password(user=user, verifiers=map(verifier_message, verifiers))
    await _alter(control, users_pb2.AlterUserCredentialsRequest(passwords=[made]))


async def remove_user(control: Control, user: str) -> None:
    await _alter(control, users_pb2.AlterUserCredentialsRequest(removed=[user]))


async def _alter(control: Control, request: users_pb2.AlterUserCredentialsRequest) -> None:
    for result in (await control.call(rpc.ALTER_USER_CREDENTIALS, request)).results:
        check_item(result.error, f"user {result.user}")


async def describe_users(control: Control, users: Iterable[str]) -> list[UserDescription]:
    response = await control.call(
        rpc.DESCRIBE_USER_CREDENTIALS, users_pb2.DescribeUserCredentialsRequest(users=dict.fromkeys(users))
    )
    found = []
    for each in response.users:
        check_item(each.error, f"user {each.user}")
        iterations = {
            MECHANISM_NAMES.get(one.mechanism, str(one.mechanism)): one.iterations for one in each.credentials
        }
        found.append(UserDescription(each.user, iterations))
    return found
