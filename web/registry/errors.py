"""The registry's errors, with the codes that clients of the original know."""

from __future__ import annotations

from typing import Final

from semel.web.problems import Problem

_OF_NODE: Final = {
    401: "the node does not take this user name and password",
    403: (
        "this user may not do that: it needs the permission to write the topic _schemas and to use the transactional "
        "id semel-schema-registry, which an administrator of the cluster can give"
    ),
    413: "the schema is too large for one record of _schemas: make it smaller",
    503: "the topic _schemas can't be read or written at the moment: ask again in a second",
}
_OTHERS: Final = (
    "the topic _schemas could not be read or written. Whether this took effect is not known: it is safe to ask for it "
    "again. If it fails again, the log of the gateway says why"
)


def of_node(failed: Problem) -> Problem:
    """Return what is answered where a client of the node failed: what it said is for programs with such a client."""
    status = failed.status if failed.status in _OF_NODE else 500
    code = {503: 50003, 500: 50001}.get(status, status)
    return Problem(status, _OF_NODE.get(status, _OTHERS), error_code=code, headers=failed.headers)


def subject_not_found(subject: str) -> Problem:
    return Problem(404, f"Subject '{subject}' not found.", error_code=40401)


def version_not_found(version: object) -> Problem:
    return Problem(404, f"Version {version} not found.", error_code=40402)


def schema_not_found(schema_id: object = None) -> Problem:
    detail = "Schema not found" if schema_id is None else f"Schema {schema_id} not found"
    return Problem(404, detail, error_code=40403)


def subject_soft_deleted(subject: str) -> Problem:
    detail = f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently"
    return Problem(404, detail, error_code=40404)


def subject_not_soft_deleted(subject: str) -> Problem:
    detail = f"Subject '{subject}' was not deleted first before being permanently deleted"
    return Problem(404, detail, error_code=40405)


def version_soft_deleted(subject: str, version: int) -> Problem:
    detail = f"Subject '{subject}' Version {version} was soft deleted. Set permanent=true to delete permanently"
    return Problem(404, detail, error_code=40406)


def version_not_soft_deleted(subject: str, version: int) -> Problem:
    detail = f"Subject '{subject}' Version {version} was not deleted first before being permanently deleted"
    return Problem(404, detail, error_code=40407)


def no_own_compatibility(subject: str) -> Problem:
    detail = f"Subject '{subject}' does not have subject-level compatibility configured"
    return Problem(404, detail, error_code=40408)


def no_own_mode(subject: str) -> Problem:
    detail = f"Subject '{subject}' does not have subject-level mode configured"
    return Problem(404, detail, error_code=40409)


def incompatible(subject: str, why: list[str]) -> Problem:
    detail = (
        f'Schema being registered is incompatible with an earlier schema for subject "{subject}", '
        f"details: [{', '.join(why)}]"
    )
    return Problem(409, detail, error_code=409)


def invalid_version(version: str) -> Problem:
    detail = (
        f"The specified version '{version}' is not a valid version id. Allowed values are between [1, 2^31-1] and the "
        'string "latest"'
    )
    return Problem(422, detail, error_code=42202)


def invalid_level(level: object) -> Problem:
    detail = (
        f"Invalid compatibility level {level!r}. Valid values are none, backward, forward, full, backward_transitive, "
        "forward_transitive, and full_transitive"
    )
    return Problem(422, detail, error_code=42203)


def invalid_mode(mode: object) -> Problem:
    return Problem(422, f"Invalid mode {mode!r}. Valid values are READWRITE, READONLY, IMPORT", error_code=42204)


def not_permitted(detail: str) -> Problem:
    return Problem(422, detail, error_code=42205)


def referenced(subject: str, version: int) -> Problem:
    detail = (
        f"One or more references exist to the schema {{magic=1,keytype=SCHEMA,subject={subject},version={version}}}."
    )
    return Problem(422, detail, error_code=42206)


def invalid_subject(subject: str) -> Problem:
    return Problem(422, f"The specified subject '{subject[:200]}' is not a valid subject", error_code=42208)
