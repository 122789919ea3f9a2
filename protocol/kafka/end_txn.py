"""How a producer has its transaction decided: EndTxn v5 (KIP-98, KIP-890).

Written by hand, as Produce and Fetch are: a client needs few other Kafka messages, and so none of kio.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from semel.protocol.errors import ErrorCode
from semel.protocol.ids import ProducerIdAndEpoch
from semel.protocol.kafka.api import error_code_of
from semel.protocol.kafka.wire import Buffer, Part, WireReader, WireWriter

END_TXN_VERSION: Final = 5
"""The first version in which the epoch ends with the transaction, and the answer names the next one."""


class EndTxnAnswer(NamedTuple):
    """What the coordinator says. `producer`: the identity of the next transaction, where there is no error."""

    error: ErrorCode
    producer: ProducerIdAndEpoch


def end_txn_request(transactional_id: str, producer: ProducerIdAndEpoch, *, commit: bool) -> list[Part]:
    """Return the body of a request to commit or to abort."""
    writer = WireWriter()
    writer.write_string(transactional_id, True)
    writer.write_int64(producer.producer_id)
    writer.write_int16(producer.producer_epoch)
    writer.write_int8(int(commit))
    writer.write_no_tags()
    return writer.finish()


def read_end_txn(body: Buffer) -> EndTxnAnswer:
    """Return what is answered to it. Raises `WireFormatError`."""
    reader = WireReader(body)
    reader.read_int32()  # the throttle time: it is the node that waits
    error = error_code_of(reader.read_int16())
    producer = ProducerIdAndEpoch(reader.read_int64(), reader.read_int16())
    reader.skip_tagged_fields()
    reader.expect_end()
    return EndTxnAnswer(error, producer)
