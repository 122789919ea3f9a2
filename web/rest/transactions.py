"""Writing to several topics at once, and with a group's offsets: one transaction, which takes effect once.

A worker without a state reads where its group stands, reads records from there, and sends results and offsets in one
request, with the offsets from which it began. Of two workers that began at the same place one is refused (O5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from semel.protocol.ids import TopicPartition
from semel.protocol.int_bounds import INT64_MAX
from semel.web.rest.bodies import Fields, json_body, wrong
from semel.web.rest.bounds import OFFSETS_MAX, RECORDS_MAX
from semel.web.rest.groups import partition_of
from semel.web.rest.once.keys import fingerprint_of, required_key
from semel.web.rest.once.work import Work
from semel.web.rest.produce import replayed, reports
from semel.web.rest.record_data import NewRecord, new_record
from semel.web.rest.service import Service

if TYPE_CHECKING:
    from semel.sdk.producer.delivery import RecordMetadata

_NOWHERE: Final = -1
_NO_OFFSETS: Final[Mapping[TopicPartition, int]] = MappingProxyType({})


class Transactions:
    """The endpoints."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def produce_to_topics(self, request: Request) -> Response:
        """Records of several topics: all of them, or none."""
        cluster_id = await self._service.cluster_id(request)
        fields = Fields(await json_body(request), "", ("records",))
        records = _records(fields)
        if not records:
            raise wrong("records is a list that is not empty")
        return await self._done(request, cluster_id, "KafkaProducedRecordList", records)

    async def transact(self, request: Request) -> Response:
        """Records, and the offsets of the group that they were made from: all of it, or none."""
        cluster_id = await self._service.cluster_id(request)
        fields = Fields(await json_body(request), "", ("records", "consumer_group_id", "offsets"))
        offsets: dict[TopicPartition, int] = {}
        expected: dict[TopicPartition, int] = {}
        for number, item in enumerate(fields.items("offsets", OFFSETS_MAX)):
            partition, each = partition_of(item, f"offsets[{number}]", ("offset", "expected_offset"))
            if partition in offsets:
                raise wrong(f"offsets names {partition} twice")
            offset = each.number("offset", 0, INT64_MAX)
            if not isinstance(item, dict) or "expected_offset" not in item:
                raise wrong(
                    f"{each.name('expected_offset')} says where the group stood as the work began, null where it had "
                    "committed nothing: without it two workers could process the same records"
                )
            began = each.number("expected_offset", 0, INT64_MAX, None)
            assert offset is not None
            offsets[partition] = offset
            expected[partition] = _NOWHERE if began is None else began
        records = _records(fields)
        if not records and not offsets:
            raise wrong("a transaction has records, offsets, or both")
        if bool(offsets) != (fields.raw("consumer_group_id") is not None):
            raise wrong("offsets and consumer_group_id go together: a group, and where it moves to")
        group = fields.text("consumer_group_id") if offsets else ""
        return await self._done(request, cluster_id, "KafkaTransaction", records, group, offsets, expected)

    async def _done(
        self,
        request: Request,
        cluster_id: str,
        kind: str,
        records: Sequence[NewRecord],
        group: str = "",
        offsets: Mapping[TopicPartition, int] = _NO_OFFSETS,
        expected: Mapping[TopicPartition, int] = _NO_OFFSETS,
    ) -> Response:
        caller = self._service.caller(request)
        key = required_key(request, caller.user)

        def told(places: Sequence[RecordMetadata]) -> dict[str, Any]:
            answer: dict[str, Any] = {"kind": kind, "cluster_id": cluster_id}
            if offsets:
                answer["consumer_group_id"] = group
                answer["offsets"] = [
                    {"topic_name": partition.topic, "partition_id": partition.partition, "offset": offset}
                    for partition, offset in offsets.items()
                ]
            return {**answer, "data": reports(cluster_id, records, places)}

        work = Work(tuple(records), told, group, offsets, expected)
        fingerprint = fingerprint_of(request, await request.body())
        answer = await self._service.lanes.do(caller, key, fingerprint, work)
        return JSONResponse(answer.body, answer.status, replayed(answer))


def _records(fields: Fields) -> tuple[NewRecord, ...]:
    items = fields.items("records", RECORDS_MAX)
    return tuple(new_record(item, f"records[{number}]", None) for number, item in enumerate(items))
