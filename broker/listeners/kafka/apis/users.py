"""DescribeUserScramCredentials and AlterUserScramCredentials, version 0 (KIP-554).

Clients send passwords salted and hashed. As in Kafka, they may do so over a connection that is not encrypted: who reads
such a connection can use what is in it in place of the password.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.users import alter_users, describe_users
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.messages import Values
from semel.protocol.scram import (
    MECHANISM_NAMES,
    MECHANISM_NUMBERS,
    SALTED_BYTES_MAX,
    Alteration,
    unacceptable,
    unknown_mechanism,
    verifier_of_salted,
)
from semel.runtime.turns import in_turns


async def handle_describe_user_scram_credentials(context: RequestContext, body: memoryview) -> bytes:
    request = await read_request(context, body)
    try:
        found = await describe_users(context.node, context.rights, [each.name for each in request.users or ()])
    except SemelError as error:
        return await write_response(context, **_error(error), results=())
    return await write_response(
        context,
        results=[
            {
                "user": name,
                **({} if error is None else _error(error)),
                "credential_infos": [
                    {"mechanism": MECHANISM_NUMBERS[mechanism], "iterations": iterations}
                    for mechanism, iterations in (user.iterations.items() if user is not None else ())
                ],
            }
            async for name, user, error in in_turns(found)
        ],
    )


async def handle_alter_user_scram_credentials(context: RequestContext, body: memoryview) -> bytes:
    request = await read_request(context, body)
    wanted: list[tuple[str, Alteration | SemelError]] = []
    async for each in in_turns(request.deletions):
        mechanism = MECHANISM_NAMES.get(each.mechanism)
        wanted.append(
            (each.name, unknown_mechanism() if mechanism is None else Alteration(each.name, removed=(mechanism,)))
        )
    async for each in in_turns(request.upsertions):
        try:
            wanted.append((each.name, _upsertion(each)))
        except SemelError as error:
            wanted.append((each.name, error))
    try:
        outcomes = await alter_users(context.node, context.rights, wanted)
    except SemelError as error:
        return await write_response(context, results=_results((user, error) for user, _ in wanted))
    return await write_response(context, results=_results(outcomes.items()))


def _upsertion(given: Any) -> Alteration:
    """Return what a client asks for. The order of checks is Kafka's. Raises `FatalError`."""
    if not given.name:
        return Alteration("")
    mechanism = MECHANISM_NAMES.get(given.mechanism)
    if mechanism is None:
        raise unknown_mechanism()
    if not 1 <= len(given.salted_password) <= SALTED_BYTES_MAX:
        raise unacceptable(f"a salted password has 1 to {SALTED_BYTES_MAX} bytes")
    verifier = verifier_of_salted(mechanism, given.iterations, given.salt, given.salted_password)
    return Alteration(given.name, (verifier.check_for_cluster(),))


def _results(outcomes: Iterable[tuple[str, SemelError | None]]) -> list[Values]:
    return [{"user": user, **({} if error is None else _error(error))} for user, error in dict(outcomes).items()]


def _error(error: SemelError) -> Values:
    return {"error_code": ErrorCode(error.code), "error_message": error.message}


DESCRIBE_USER_SCRAM_CREDENTIALS = Api(
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, handle_describe_user_scram_credentials
)
ALTER_USER_SCRAM_CREDENTIALS = Api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0, handle_alter_user_scram_credentials)
