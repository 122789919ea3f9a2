"""The options of the sink: those of Spark's Kafka sink, and a few of Semel's own for what Kafka's can't do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from semel.protocol.compression import Compression
from semel.protocol.errors import UsageError
from semel.protocol.int_bounds import INT32_MAX
from semel.spark.clients import Address
from semel.spark.options import BOOTSTRAP, KAFKA_BOOTSTRAP, OptionReader, redacted, without_secrets

_KNOWN: Final = (
    BOOTSTRAP,
    KAFKA_BOOTSTRAP,
    "topic",
    "sinkName",
    "sourceRange",
    "txnAppId",
    "txnVersion",
    "txnRunId",
    "kafka.group.id",
    "kafka.client.id",
    "kafka.security.protocol",
    "kafka.acks",
    "kafka.enable.idempotence",
    "kafka.compression.type",
    "kafka.batch.size",
    "kafka.buffer.memory",
    "kafka.delivery.timeout.ms",
    "kafka.request.timeout.ms",
    "kafka.max.block.ms",
    "kafka.transaction.timeout.ms",
)
_REFUSED: Final = {
    "key.serializer": "give the column key as text or binary",
    "value.serializer": "give the column value as text or binary",
    "transactional.id": "the transaction of a batch has many writers, and the coordinator names each",
    "interceptor.classes": "they are Java classes, and this sink has no Java client",
    "partitioner.class": "it is a Java class, and this sink has no Java client; give a column 'partition' in its place",
}
_COMPRESSIONS: Final = tuple(each.name.lower() for each in Compression)


@dataclass(frozen=True)
class SinkOptions:
    """Everything the sink was told, checked.

    topic:        where all rows go; empty: the column says it
    sink_name:    tells the sinks of one query apart
    checkpoint:   the query's checkpoint, where Spark or the helper for foreachBatch has said it
    wants_source_range: whether the checkpoint is to say what a batch has read
    goes_by_number: whether to do without was asked for: a batch that is found committed must be the last one then
    app_id, version, run_id: of a batch write that is one of a line (foreachBatch); empty and -1 otherwise
    group:        for which the source's offsets are committed with the output; empty: for none
    buffer_bytes: what a task's rows may take in its process
    """

    address: Address
    topic: str
    sink_name: str
    checkpoint: str
    wants_source_range: bool
    goes_by_number: bool
    app_id: str
    version: int
    run_id: str
    group: str
    compression: str
    batch_bytes: int
    buffer_bytes: int
    delivery_timeout_ms: int
    transaction_timeout_ms: int

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Return the options. Raises `UsageError` that names the option and the next step."""
        try:
            return cls._parse(options)
        except UsageError as error:
            raise UsageError(f"{without_secrets(error.message)} (options: {redacted(options)})") from None

    @classmethod
    def _parse(cls, options: Mapping[str, str]) -> SinkOptions:
        reader = OptionReader("sink", options, _KNOWN, _REFUSED)
        reader.finish()
        _check_guarantees(reader)
        app_id = reader.text("txnAppId")
        version = reader.integer("txnVersion", -1, minimum=0)
        if bool(app_id) != (version != -1):
            raise UsageError("options txnAppId and txnVersion go together: whose write it is, and which one of them")
        topic = reader.text("topic")
        checkpoint = reader.text("checkpointLocation")
        group = reader.text("kafka.group.id")
        # Without the checkpoint's place, batches are told apart by their numbers alone; offsets need more.
        default = "checkpoint" if checkpoint or group else "none"
        wants_source_range = reader.choice("sourceRange", ("checkpoint", "none"), default) == "checkpoint"
        if group and not wants_source_range:
            raise UsageError("kafka.group.id commits what the checkpoint says was read, and sourceRange is 'none'")
        return cls(
            address=Address(
                reader.bootstrap(),
                client_id=reader.text("kafka.client.id") or "semel-spark-sink",
                request_timeout_ms=reader.integer("kafka.request.timeout.ms", 30_000, maximum=INT32_MAX) or 0,
                api_timeout_ms=reader.integer("kafka.max.block.ms", 60_000, maximum=INT32_MAX) or 0,
            ),
            topic=topic,
            sink_name=reader.text("sinkName") or topic or "sink",
            checkpoint=checkpoint,
            wants_source_range=wants_source_range,
            goes_by_number=reader.has("sourceRange") and not wants_source_range,
            app_id=app_id,
            version=-1 if version is None else version,
            run_id=reader.text("txnRunId"),
            group=group,
            compression=reader.choice("kafka.compression.type", _COMPRESSIONS, "none"),
            batch_bytes=reader.integer("kafka.batch.size", 512 << 10, 1, 16 << 20) or 0,
            buffer_bytes=reader.integer("kafka.buffer.memory", 64 << 20, 1 << 20) or 0,
            delivery_timeout_ms=reader.integer("kafka.delivery.timeout.ms", 120_000, maximum=INT32_MAX) or 0,
            transaction_timeout_ms=reader.integer("kafka.transaction.timeout.ms", 600_000, maximum=INT32_MAX) or 0,
        )

    @property
    def writer_memory_bytes(self) -> int:
        """The half for what is sent and not acknowledged yet."""
        return self.buffer_bytes // 2

    @property
    def rows_memory_bytes(self) -> int:
        """The other half is for rows that wait for more of their partition: at times they take half as much again."""
        return self.buffer_bytes // 3


def _check_guarantees(reader: OptionReader) -> None:
    """Refuse what would weaken what the sink is for."""
    if reader.text("kafka.acks", "all").lower() not in ("all", "-1"):
        raise UsageError("kafka.acks can only be 'all': the sink writes in transactions")
    if not reader.flag("kafka.enable.idempotence", True):
        raise UsageError("kafka.enable.idempotence can only be 'true': the sink writes in transactions")
    if reader.text("asyncProgressTrackingEnabled", "false").lower() == "true":
        raise UsageError(
            "asyncProgressTrackingEnabled can't be used with this sink: Spark would run batches whose offsets are not "
            "written yet, and after a crash batch numbers would stand for other records; leave the option out"
        )
