"""Errors of the node as answers with the numbers of Confluent's API, version 3."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Final, TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from semel.protocol.errors import ErrorCode, RetriableError, SemelError, UsageError
from semel.web.problems import Problem
from semel.web.rest.bounds import RETRY_AFTER_S

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]

BAD_REQUEST: Final = 40002
"""What the original says for a request that Kafka refuses."""
UNPROCESSABLE: Final = 42201

_ANSWERS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: (404, 40403),
    ErrorCode.UNKNOWN_TOPIC_ID: (404, 40403),
    ErrorCode.GROUP_ID_NOT_FOUND: (404, 404),
    ErrorCode.OFFSET_OUT_OF_RANGE: (404, 40404),
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: (403, 40301),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: (403, 40301),
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: (403, 40301),
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (403, 40301),
    ErrorCode.SASL_AUTHENTICATION_FAILED: (401, 40101),
    ErrorCode.TOPIC_ALREADY_EXISTS: (400, BAD_REQUEST),
    ErrorCode.INVALID_TOPIC_EXCEPTION: (400, BAD_REQUEST),
    ErrorCode.INVALID_PARTITIONS: (400, BAD_REQUEST),
    ErrorCode.INVALID_REPLICATION_FACTOR: (400, BAD_REQUEST),
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: (400, BAD_REQUEST),
    ErrorCode.INVALID_CONFIG: (400, BAD_REQUEST),
    ErrorCode.INVALID_REQUEST: (400, BAD_REQUEST),
    ErrorCode.INVALID_GROUP_ID: (400, BAD_REQUEST),
    ErrorCode.INVALID_TIMESTAMP: (400, BAD_REQUEST),
    ErrorCode.INVALID_RECORD: (400, BAD_REQUEST),
    ErrorCode.POLICY_VIOLATION: (400, BAD_REQUEST),
    ErrorCode.INVALID_COMMIT_OFFSET_SIZE: (413, 413),
    ErrorCode.MESSAGE_TOO_LARGE: (413, 413),
    ErrorCode.RECORD_LIST_TOO_LARGE: (413, 413),
    ErrorCode.NON_EMPTY_GROUP: (409, 409),
    ErrorCode.UNKNOWN_MEMBER_ID: (409, 409),
    ErrorCode.INVALID_UPDATE_VERSION: (409, 409),
    ErrorCode.UNSTABLE_OFFSET_COMMIT: (409, 409),
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: (429, 42901),
}
_MAY_BE_REPEATED: Final = frozenset({429, 503})


_IN_OTHER_WORDS: Final = (
    (re.compile(r"create it with Admin\.create_topic, or `semel topic create [^`]*`"), "POST it to .../topics"),
    (re.compile(r"this producer has failed; close it and make a new one \((.*)\)", re.DOTALL), r"\1"),
    (
        re.compile(
            r"nothing is committed, and offset_reset is 'error'; seek to where reading is to begin, or set it to "
            r"'earliest' or 'latest'"
        ),
        "ask for offset=earliest, offset=latest, or another number",
    ),
    (re.compile("seek to where reading is to continue"), "ask for offset=earliest, or another number"),
)
"""What errors tell those who have a client of the node in their hands, and what it is to those who speak HTTP."""


def _for_http(text: str) -> str:
    """
    >>> _for_http("there is no topic 'a'; create it with Admin.create_topic, or `semel topic create a`")
    "there is no topic 'a'; POST it to .../topics"
    """
    for words, others in _IN_OTHER_WORDS:
        text = words.sub(others, text)
    return text


def rest_problem(error: SemelError) -> Problem:
    """Return how an error of a client of the node is answered.

    >>> problem = rest_problem(UsageError("no such thing"))
    >>> problem.status, problem.error_code
    (400, 40002)
    """
    found = _ANSWERS.get(error.code)
    if found is None:
        if isinstance(error, UsageError):
            found = (400, BAD_REQUEST)
        elif isinstance(error, RetriableError):
            found = (503, 50302)
        else:
            found = (500, 50002)
    status, code = found
    may_help = status in _MAY_BE_REPEATED or error.code is ErrorCode.UNSTABLE_OFFSET_COMMIT
    return Problem(status, _for_http(str(error)), error_code=code, retry_after_s=RETRY_AFTER_S if may_help else None)


def bad_request(detail: str) -> Problem:
    return Problem(400, detail, error_code=400)


def answered(endpoint: Endpoint) -> Endpoint:
    """Return an endpoint whose errors of the node are answered as this API does."""

    @wraps(endpoint)
    async def checked(request: Request) -> Response:
        try:
            return await endpoint(request)
        except SemelError as error:
            raise rest_problem(error) from error

    return checked
