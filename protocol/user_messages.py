"""What proves passwords, as the messages of semel.v1 carry it."""

from __future__ import annotations

from semel.protocol.scram import MECHANISM_NAMES, MECHANISM_NUMBERS, Verifier, unknown_mechanism
from semel.protocol.v1 import users_pb2


def verifier_message(verifier: Verifier) -> users_pb2.ScramVerifier:
    """Return the message of a verifier."""
    return users_pb2.ScramVerifier(
        mechanism=MECHANISM_NUMBERS[verifier.mechanism],
        iterations=verifier.iterations,
        salt=verifier.salt,
        stored_key=verifier.stored_key,
        server_key=verifier.server_key,
    )


def verifier_of(message: users_pb2.ScramVerifier) -> Verifier:
    """Return the verifier of a message. It is not checked. Raises `FatalError` for an unknown mechanism."""
    mechanism = MECHANISM_NAMES.get(message.mechanism)
    if mechanism is None:
        raise unknown_mechanism()
    return Verifier(mechanism, message.iterations, message.salt, message.stored_key, message.server_key)
