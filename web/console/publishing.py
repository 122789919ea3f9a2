"""One record, written into a form and published."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from semel.web.console.visit import Handler, Visit
from semel.web.problems import Problem

_HEADERS_MAX: Final = 100
_PRODUCE_MS: Final = 10_000


async def _form(visit: Visit) -> Response:
    topic = await visit.admin.topic(visit.needed("topic"))
    return visit.html("publish.html", topic=topic)


async def _publish(visit: Visit) -> Response:
    topic = await visit.admin.topic(visit.needed("topic"))  # which a typing error must not create
    fields = visit.fields
    partition = _partition(fields.get("partition", ""), len(topic.partitions))
    key = fields.get("key", "").encode() or None  # an empty key is hardly ever meant, and has one partition for all
    value = None if "no-value" in fields else _value(fields.get("value", ""))
    producer = visit.clients.producer(delivery_timeout_ms=_PRODUCE_MS, request_timeout_ms=_PRODUCE_MS)
    async with producer:
        sent = await producer.send(
            topic.name, value, key=key, partition=partition, headers=headers_of(fields.get("headers", ""))
        )
        done = await sent
    return visit.to("record", topic=topic.name, partition=done.partition, offset=done.offset, done="published")


def _value(text: str) -> bytes:
    """Browsers send line ends as CR LF; the value has what was typed."""
    return text.replace("\r\n", "\n").encode()


def _partition(text: str, count: int) -> int | None:
    text = text.strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > 9 or int(text) >= count:
        raise Problem(400, f"there is no partition {text[:20]!r}: they are 0 to {count - 1}")
    return int(text)


def headers_of(text: str) -> list[tuple[str, bytes]]:
    """Return the headers of lines such as `name: value`. Raises `Problem` 400.

    >>> headers_of("source: console")
    [('source', b'console')]
    """
    found = []
    for line in text.splitlines():
        if not line.strip():
            continue
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise Problem(400, f"a header is written as name: value, one on each line; not {line[:40]!r}")
        found.append((name.strip(), value.strip().encode()))
    if len(found) > _HEADERS_MAX:
        raise Problem(400, f"up to {_HEADERS_MAX} headers can be given here, not {len(found)}")
    return found


PAGES: Final[tuple[tuple[str, Handler], ...]] = (("publish", _form),)
CHANGES: Final[tuple[tuple[str, Handler], ...]] = (("publish", _publish),)
