"""What is said of a record that failed in a run: once what, once where, and what to do in a run."""

from __future__ import annotations

import pickle

import pytest

import semel
from semel.runtime.backoff import Backoff
from semel.sdk.consumer.deserialization import DeserializationError, Deserializers
from semel.sdk.pipeline.failures import Failures, RecordFailedError

RECORD = semel.Record(7, 0, None, b"{bad", (), "orders", 0)


def failed(error: Exception) -> RecordFailedError:
    failure = Failures(0, Backoff(1, 1)).note(semel.TopicPartition("orders", 0), 7, error, 0.0)
    return RecordFailedError(RECORD, failure.attempts, failure.reason)


def test_a_deserializer_that_failed_in_a_run_was_called_the_handler_and_told_to_seek() -> None:
    deserializers = Deserializers.checked(None, "json")
    assert deserializers is not None
    with pytest.raises(DeserializationError) as met:
        deserializers.applied(RECORD)
    said = failed(met.value).message
    assert said.startswith("record orders-0@7 failed once: the value_deserializer raised JSONDecodeError: Expecting ")
    assert "; fix the program and run again, or give run() a dead_letter_topic for such records" in said
    assert "handler" not in said
    assert "seek" not in said
    assert said.count("orders-0@7") == 1
    assert "or seek to 8" in met.value.message, "it is right where the program reads"
    assert pickle.loads(pickle.dumps(met.value)).reason == met.value.reason


def test_what_a_handler_raised_is_named() -> None:
    assert failed(KeyError("x")).message.startswith("record orders-0@7 failed once: KeyError: 'x'; fix the program")
