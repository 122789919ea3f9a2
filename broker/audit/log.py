"""Who did, or was refused, what, and from where: the logger `semel.audit`, one line an event.

Each line has an event's name and fields, `topic.created: principal='User:alice' host='10.0.0.7' topic='orders'`. They
are attributes of the record, too: JSON lines have them under `attributes`, and `export.py` sends them to a collector.
No field is a secret (S5), and no text that a client chose can begin a line of its own: strings are quoted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, TypeAlias

from semel.runtime.caller import caller_origin
from semel.runtime.limited_log import LimitedLog

LOGGER: Final = "semel.audit"
EVENT: Final = "event.name"
NODE: Final = "semel.node.id"
"""Of several in one process, whose line it is."""
_TEXT_SHOWN: Final = 4_000
"""Longer values are cut, and say so: settings can be long."""
_SETS_A_MINUTE: Final = 50
_GROUPS_MAX: Final = 1_000
"""Of so many groups is known how often their offsets were set."""

Detail: TypeAlias = str | int | float


class Event(StrEnum):
    """What the log has. docs/security.md lists them."""

    TOPIC_CREATED = "topic.created"
    TOPIC_DELETED = "topic.deleted"
    PARTITIONS_ADDED = "partitions.added"
    RECORDS_DELETED = "records.deleted"
    SETTINGS_CHANGED = "settings.changed"
    GROUP_DELETED = "group.deleted"
    OFFSETS_SET = "offsets.set"
    OFFSETS_DELETED = "offsets.deleted"
    TRANSACTION_ABORTED = "transaction.aborted"
    HANGING_TRANSACTION_ENDED = "hanging_transaction.ended"
    ACL_ADDED = "acl.added"
    ACL_REMOVED = "acl.removed"
    QUOTA_SET = "quota.set"
    QUOTA_REMOVED = "quota.removed"
    PASSWORD_SET = "password.set"  # noqa: S105 (a name)
    PASSWORD_REMOVED = "password.removed"  # noqa: S105 (a name)
    DELEGATION_TOKEN_CREATED = "delegation_token.created"  # noqa: S105 (a name)
    DELEGATION_TOKEN_RENEWED = "delegation_token.renewed"  # noqa: S105 (a name)
    DELEGATION_TOKEN_EXPIRED = "delegation_token.expired"  # noqa: S105 (a name)
    NODE_CORDONED = "node.cordoned"
    NODE_UNCORDONED = "node.uncordoned"
    NODE_REMOVED = "node.removed"
    REPLICAS_MOVED = "replicas.moved"
    MOVE_CANCELLED = "move.cancelled"
    LEADER_ELECTED = "leader.elected"
    AUTHENTICATED = "authenticated"
    AUTHENTICATION_FAILED = "authentication.failed"
    DENIED = "denied"
    ALLOWED = "allowed"
    CERTIFICATE_REFUSED = "certificate.refused"


class Audit:
    """Of one node. On the event loop."""

    def __init__(self, node_id: int) -> None:
        self._node: Final = {NODE: node_id}
        self._log = logging.getLogger(LOGGER)
        # What strangers make it say is bounded, each kind apart: nobody hides a change or a denial behind others.
        self._refused = LimitedLog(self._log)
        self._certificates = LimitedLog(self._log)
        self._failed = LimitedLog(self._log)
        self._authenticated = LimitedLog(self._log, level=logging.INFO)
        self._allowed = LimitedLog(self._log, level=logging.INFO)
        self._set_often = LimitedLog(self._log, level=logging.INFO)
        self._sets: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """When the minute of a group began, and how often its offsets were set since."""

    def changed(self, who: str, event: Event, /, **details: Detail) -> None:
        """Write that somebody has changed something. Each change is written, however many there are.

        who: the caller, as `Rights.who` names it
        """
        text, attributes = _described(event, {"principal": who, **_origin(), **details})
        self._log.info("%s", text, extra=self._node | attributes)

    def authenticated(self, **details: Detail) -> None:
        """Tell of a client that has proven who it is; at most so many a minute."""
        self._tell(self._authenticated, Event.AUTHENTICATED, details)

    def authentication_failed(self, **details: Detail) -> None:
        """Tell of one that has not; at most so many a minute."""
        self._tell(self._failed, Event.AUTHENTICATION_FAILED, details)

    def denied(self, principal: str, **details: Detail) -> None:
        """Tell of something that was asked for by name and refused; at most so many a minute."""
        self._tell(self._refused, Event.DENIED, {"principal": principal, **_origin(), **details})

    def certificate_refused(self, **details: Detail) -> None:
        """Tell of a certificate that no rule makes a principal of; at most so many a minute."""
        self._tell(self._certificates, Event.CERTIFICATE_REFUSED, details)

    def allowed(self, principal: str, **details: Detail) -> None:
        """Write one of a sample of what somebody may do; at most so many a minute."""
        self._tell(self._allowed, Event.ALLOWED, {"principal": principal, **_origin(), **details})

    def offsets_set(self, who: str, group: str, *, had_members: bool, **details: Detail) -> None:
        """Tell of offsets that are set from outside a group: each, up to so many a minute of one group that has had
        members, which an operator moves. All others share what is told a minute: programs that choose their partitions
        themselves commit so, again and again.
        """
        if had_members and self._is_rare(group):
            self.changed(who, Event.OFFSETS_SET, group=group, **details)
        else:
            told = {"principal": who, **_origin(), "group": group, **details}
            self._tell(self._set_often, Event.OFFSETS_SET, told)

    def _is_rare(self, group: str) -> bool:
        now = asyncio.get_running_loop().time()
        begun, count = self._sets.pop(group, (now, 0))
        if now - begun >= 60.0:
            begun, count = now, 0
        self._sets[group] = begun, count + 1
        if len(self._sets) > _GROUPS_MAX:
            self._sets.popitem(last=False)
        return count < _SETS_A_MINUTE

    def _tell(self, log: LimitedLog, event: Event, details: Mapping[str, Detail]) -> None:
        text, attributes = _described(event, details)
        log.write("%s", text, extra=self._node | attributes)

    def close(self) -> None:
        """Say what was left out so far."""
        limited = (self._refused, self._certificates, self._failed, self._authenticated, self._allowed, self._set_often)
        for log in limited:
            log.close()


def _origin() -> dict[str, Detail]:
    origin = caller_origin()
    return {} if origin is None else {"host": origin.host, "client_id": origin.client_id}


def _described(event: Event, details: Mapping[str, Detail]) -> tuple[str, dict[str, object]]:
    """Return an event as a line, and as the attributes of a record: no name of one is without a dot, so that it can't
    be that of an attribute which records have.
    """
    shown = {name: _cut(value) if isinstance(value, str) else value for name, value in details.items()}
    text = " ".join(f"{name}={value!r}" for name, value in shown.items())
    return f"{event}: {text}", {EVENT: event.value, **{f"semel.{name}": value for name, value in shown.items()}}


def _cut(text: str) -> str:
    left_out = len(text) - _TEXT_SHOWN
    return text if left_out <= 0 else f"{text[:_TEXT_SHOWN]}... ({left_out} characters left out)"


def attributes_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return what a record has beside its text: names with a dot, which those of `logging` itself have not."""
    return {name: value for name, value in vars(record).items() if "." in name}
