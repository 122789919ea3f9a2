"""semel.v1.UserService."""

from __future__ import annotations

from semel.broker.acls.rights import rights_of_call
from semel.broker.listeners.grpc.convert import filled
from semel.broker.listeners.grpc.edge import Context
from semel.broker.listeners.grpc.errors import item_error
from semel.broker.permitted import users
from semel.broker.services import Services
from semel.protocol.errors import SemelError
from semel.protocol.scram import MECHANISM_NUMBERS, Alteration, unacceptable
from semel.protocol.user_messages import verifier_of
from semel.protocol.v1 import users_pb2


class UserService:
    """Users with a password."""

    def __init__(self, node: Services) -> None:
        self._node = node

    async def alter_user_credentials(
        self, request: users_pb2.AlterUserCredentialsRequest, _context: Context
    ) -> users_pb2.AlterUserCredentialsResponse:
        wanted: list[tuple[str, Alteration | SemelError]] = [
            (user, Alteration(user, replaces=True)) for user in request.removed
        ]
        wanted += ((each.user, _password(each)) for each in request.passwords)
        outcomes = await users.alter_users(self._node, rights_of_call(), wanted)
        return users_pb2.AlterUserCredentialsResponse(
            results=[
                users_pb2.AlterUserCredentialsResponse.Result(
                    user=user, error=None if error is None else item_error(error.code, error.message)
                )
                for user, error in outcomes.items()
            ]
        )

    async def describe_user_credentials(
        self, request: users_pb2.DescribeUserCredentialsRequest, _context: Context
    ) -> users_pb2.DescribeUserCredentialsResponse:
        found = await users.describe_users(self._node, rights_of_call(), request.users)
        message = users_pb2.DescribeUserCredentialsResponse()
        return await filled(
            message,
            message.users,
            (
                users_pb2.DescribeUserCredentialsResponse.User(
                    user=name,
                    error=None if error is None else item_error(error.code, error.message),
                    credentials=[
                        users_pb2.DescribeUserCredentialsResponse.Credential(
                            mechanism=MECHANISM_NUMBERS[mechanism], iterations=iterations
                        )
                        for mechanism, iterations in (user.iterations.items() if user is not None else ())
                    ],
                )
                for name, user, error in found
            ),
        )


def _password(given: users_pb2.AlterUserCredentialsRequest.Password) -> Alteration | SemelError:
    if not given.verifiers:
        return unacceptable("a password needs what proves it")
    try:
        return Alteration(given.user, tuple(map(verifier_of, given.verifiers)), replaces=True)
    except SemelError as error:
        return error
