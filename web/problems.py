"""Errors as answers: problem details (RFC 9457), with the two fields that clients of Confluent's APIs read beside."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from starlette.responses import JSONResponse

from semel.protocol.errors import ErrorCode, RetriableError, SemelError, UsageError

PROBLEM_TYPE: Final = "application/problem+json"

_STATUS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 404,
    ErrorCode.UNKNOWN_TOPIC_ID: 404,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: 403,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: 403,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: 403,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: 403,
    ErrorCode.SASL_AUTHENTICATION_FAILED: 401,
    ErrorCode.TOPIC_ALREADY_EXISTS: 409,
    ErrorCode.MESSAGE_TOO_LARGE: 413,
    ErrorCode.RECORD_LIST_TOO_LARGE: 413,
}


class Problem(Exception):  # noqa: N818 (RFC 9457's word)
    """Why a request is refused. A part may raise it anywhere.

    status:        the HTTP status
    detail:        a sentence for the client, with the next step
    error_code:    the five digits of Confluent's APIs; None: the status
    retry_after_s: seconds after which it may work, sent as Retry-After
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        error_code: int | None = None,
        retry_after_s: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.error_code = status if error_code is None else error_code
        self.headers = dict(headers or {})
        if retry_after_s is not None:
            self.headers["Retry-After"] = str(retry_after_s)

    def response(self, *, close: bool = False) -> JSONResponse:
        """Return the answer. close: whether the connection ends with it, because the rest of a body is not read."""
        headers = {**self.headers, **({"Connection": "close"} if close else {})}
        return JSONResponse(
            {
                "type": "about:blank",
                "title": HTTPStatus(self.status).phrase,
                "status": self.status,
                "detail": self.detail,
                "error_code": self.error_code,
                "message": self.detail,
            },
            self.status,
            headers,
            PROBLEM_TYPE,
        )


def problem_of(error: SemelError) -> Problem:
    """Return how an error of a client of the node is answered."""
    status = None if error.code is None else _STATUS.get(error.code)
    if status is not None:
        return Problem(status, str(error))
    if isinstance(error, UsageError):
        return Problem(400, str(error))
    if isinstance(error, RetriableError):
        return Problem(503, str(error), retry_after_s=1)
    return Problem(500, str(error))
