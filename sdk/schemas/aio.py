"""The client of a schema registry, which makes what writes and reads records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from semel.protocol.extras import imports_of_extra
from semel.sdk.schemas.core import RegistryCore
from semel.sdk.schemas.model import RegisteredSchema, Schema, SchemaReference, SubjectStrategy, topic_name
from semel.sdk.schemas.serdes import SchemaDeserializer, SchemaSerializer, SubjectChoice
from semel.sdk.transport.awaiting import work
from semel.sdk.transport.border import ends_tracebacks

if TYPE_CHECKING:
    from typing import Any

    from google.protobuf.message import Message

    from semel.sdk.schemas.arrow import ArrowDecoder, ArrowEncoder


@ends_tracebacks
class SchemaRegistry:
    """A schema registry with Confluent's REST API: Semel's own (`semel http`), or Confluent's. From any thread.

    url:         its address, such as http://localhost:8080, or several, which are tried in turn
    username, password: sent as HTTP Basic, over https:// and to this machine alone
    ca_location: a PEM file with the authorities of https; empty: the system's
    timeout_s:   how long one call may take, retries included

    What an id stands for is asked once. Calls raise `SchemaRegistryError` for what the registry refuses, and
    `RetriableError` where it does not answer in time. All of them may be repeated.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        username: str = "",
        password: str = "",
        ca_location: str = "",
        timeout_s: float = 30.0,
    ) -> None:
        """Nothing connects yet. Raises `UsageError`."""
        self._core = RegistryCore(url, username, password, ca_location, timeout_s)

    def __repr__(self) -> str:
        return f"SchemaRegistry({', '.join(self._core.urls)!r})"

    # --- Schemas ------------------------------------------------------------------------------------------------------

    async def subjects(self, prefix: str = "", *, with_deleted: bool = False) -> list[str]:
        """Return the names of all subjects that begin so. with_deleted: also those that are deleted, not for good."""
        return await work(self._core.subjects, prefix, with_deleted)

    async def versions(self, subject: str, *, with_deleted: bool = False) -> list[int]:
        """Return the versions of a subject."""
        return await work(self._core.versions, subject, with_deleted)

    async def version(self, subject: str, version: int | str = "latest") -> RegisteredSchema:
        """Return a version of a subject: a number, or "latest"."""
        return await work(self._core.version, subject, version)

    async def schema(self, schema_id: int) -> Schema:
        """Return the schema with an id."""
        return await work(self._core.schema, schema_id)

    async def register(self, subject: str, schema: Schema, *, normalize: bool = False) -> int:
        """Register a schema under a subject and return its id; one that is there already keeps its id.

        normalize: take schemas whose parts are in another order for the same where the order means nothing
        Raises `SchemaRegistryError` 409 where it is not compatible, 42201 where it is no schema.
        """
        return await work(self._core.register, subject, schema, normalize)

    async def lookup(self, subject: str, schema: Schema, *, normalize: bool = False) -> RegisteredSchema:
        """Return under which version and id a schema is registered. Raises `SchemaRegistryError` 40401, 40403."""
        return await work(self._core.lookup, subject, schema, normalize)

    async def check(self, subject: str, schema: Schema, version: int | str | None = "latest") -> list[str]:
        """Return why a schema is not compatible with a version of a subject, in sentences; empty where it is.

        version: a number, "latest", or None: all that the subject's compatibility level asks for
        """
        return await work(self._core.check, subject, schema, version)

    async def delete_subject(self, subject: str, *, permanent: bool = False) -> list[int]:
        """Delete a subject and return its versions. permanent: for good, after it was deleted without that."""
        return await work(self._core.delete_subject, subject, permanent)

    async def delete_version(self, subject: str, version: int | str, *, permanent: bool = False) -> int:
        """Delete a version and return its number. permanent: for good, after it was deleted without that."""
        return await work(self._core.delete_version, subject, version, permanent)

    async def compatibility(self, subject: str | None = None) -> str:
        """Return the compatibility level that holds for a subject. None: the global one."""
        return await work(self._core.compatibility, subject)

    async def set_compatibility(self, level: str, subject: str | None = None) -> None:
        """Set the compatibility level of a subject, or the global one.

        level: BACKWARD, FORWARD, FULL, each also with _TRANSITIVE, or NONE
        """
        await work(self._core.set_compatibility, level, subject)

    # --- Records ------------------------------------------------------------------------------------------------------

    async def avro_serializer(
        self,
        schema: str | Schema,
        *,
        topic: str | None = None,
        subject: str | None = None,
        is_key: bool = False,
        strategy: SubjectStrategy = topic_name,
        register: bool = True,
        normalize: bool = False,
        references: Sequence[SchemaReference] = (),
    ) -> SchemaSerializer:
        """Return what a producer writes records of an Avro schema with: `value_serializer=` or `key_serializer=`.

        topic:     what is written to; with `is_key` and `strategy` it says under which subject the schema is
        subject:   the subject itself
        register:  register the schema now, if it is not there. False: it must exist

        A value is what fastavro takes: a dict for a record. Raises `UsageError` for a text that is no schema.
        """
        with imports_of_extra("schemas", "avro_serializer"):
            from semel.sdk.schemas.avro import avro_serializer
        choice = SubjectChoice(subject, topic, is_key, strategy)
        whole = _as_schema(schema, "AVRO", references)
        return await work(avro_serializer, self._core, whole, choice, registers=register, normalize=normalize)

    async def json_serializer(
        self,
        schema: str | Schema,
        *,
        topic: str | None = None,
        subject: str | None = None,
        is_key: bool = False,
        strategy: SubjectStrategy = topic_name,
        register: bool = True,
        normalize: bool = False,
        references: Sequence[SchemaReference] = (),
    ) -> SchemaSerializer:
        """Return what a producer writes records of a JSON Schema with. Each value is checked. See `avro_serializer`."""
        with imports_of_extra("schemas", "json_serializer"):
            from semel.sdk.schemas.json_schema import json_serializer
        choice = SubjectChoice(subject, topic, is_key, strategy)
        whole = _as_schema(schema, "JSON", references)
        return await work(json_serializer, self._core, whole, choice, registers=register, normalize=normalize)

    async def protobuf_serializer(
        self,
        message: type[Message],
        *,
        topic: str | None = None,
        subject: str | None = None,
        is_key: bool = False,
        strategy: SubjectStrategy = topic_name,
        register: bool = True,
        normalize: bool = False,
    ) -> SchemaSerializer:
        """Return what a producer writes messages of a generated class with. See `avro_serializer`.

        Files that the message's own imports are registered under their names, and referenced.
        """
        from semel.sdk.schemas.protobuf import protobuf_serializer

        choice = SubjectChoice(subject, topic, is_key, strategy)
        return await work(protobuf_serializer, self._core, message, choice, registers=register, normalize=normalize)

    async def avro_deserializer(
        self, *, reader: str | Schema | None = None, subjects: Sequence[str] = ()
    ) -> SchemaDeserializer[Any]:
        """Return what a consumer reads records in Avro with: `value_deserializer=` or `key_deserializer=`.

        reader:   the schema that the program knows: fields that it lacks are left out, and new ones get their defaults;
                  None: each record is as it was written
        subjects: whose schemas are got now, so that no record of them waits for the registry. A record of any other one
                  waits for it, also in asyncio, where it holds up the loop meanwhile
        """
        with imports_of_extra("schemas", "avro_deserializer"):
            from semel.sdk.schemas.avro import AvroDeserializer
        known = None if reader is None else _as_schema(reader, "AVRO", ())
        return await work(_prepared, lambda: AvroDeserializer(self._core, known), subjects)

    async def json_deserializer(
        self, *, reader: str | Schema | None = None, subjects: Sequence[str] = ()
    ) -> SchemaDeserializer[Any]:
        """Return what a consumer reads records in JSON with; each is checked by its schema, or by `reader`.

        subjects: see `avro_deserializer`
        """
        with imports_of_extra("schemas", "json_deserializer"):
            from semel.sdk.schemas.json_schema import JsonDeserializer
        known = None if reader is None else _as_schema(reader, "JSON", ())
        return await work(_prepared, lambda: JsonDeserializer(self._core, known), subjects)

    async def protobuf_deserializer(
        self, message: type[Message], *, subjects: Sequence[str] = ()
    ) -> SchemaDeserializer[Any]:
        """Return what a consumer reads messages of a generated class with. subjects: see `avro_deserializer`."""
        from semel.sdk.schemas.protobuf import ProtobufDeserializer

        return await work(_prepared, lambda: ProtobufDeserializer(self._core, message), subjects)

    # --- Arrow columns ------------------------------------------------------------------------------------------------

    async def arrow_decoder(
        self,
        *,
        reader: str | Schema | None = None,
        topic: str | None = None,
        subject: str | None = None,
        is_key: bool = False,
        with_spark_types: bool = False,
    ) -> ArrowDecoder:
        """Return what turns Arrow columns of records in Avro into typed ones. All records are read by one schema.

        reader:        that schema; None: the latest of the subject, as it is now
        topic, is_key: the subject is that of a topic's values or keys, such as orders-value
        subject:       the subject itself. Its schemas are got now; one of another subject at the first record of it,
                       which holds up the loop meanwhile, also in asyncio
        with_spark_types: give types that Spark takes: timestamps in microseconds, those in nanoseconds and times of day
                       as their numbers, fixed as binary

        Needs the extra `arrow`, too. Raises `UsageError` for a schema in another language than Avro, and for one that
        no Arrow type holds, such as a record that contains itself.
        """
        with imports_of_extra("arrow", "arrow_decoder"):
            import pyarrow  # noqa: F401
        with imports_of_extra("schemas", "arrow_decoder"):
            from semel.sdk.schemas.arrow import arrow_decoder
            from semel.sdk.schemas.avro_reading import AvroColumnReader  # noqa: F401
        known = None if reader is None else _as_schema(reader, "AVRO", ())
        named = topic_name(topic, is_key, "") if subject is None and topic is not None else subject
        return await work(arrow_decoder, self._core, known, named, with_spark_types=with_spark_types)

    async def arrow_encoder(
        self,
        schema: str | Schema,
        *,
        topic: str | None = None,
        subject: str | None = None,
        is_key: bool = False,
        strategy: SubjectStrategy = topic_name,
        register: bool = True,
        normalize: bool = False,
        references: Sequence[SchemaReference] = (),
    ) -> ArrowEncoder:
        """Return what turns Arrow rows into columns of records in Avro. See `avro_serializer` for the options.

        Needs the extra `arrow`, too. Raises `UsageError` as `arrow_decoder` does.
        """
        with imports_of_extra("arrow", "arrow_encoder"):
            import pyarrow  # noqa: F401
        with imports_of_extra("schemas", "arrow_encoder"):
            from semel.sdk.schemas.avro_writing import avro_arrow_encoder
        choice = SubjectChoice(subject, topic, is_key, strategy)
        whole = _as_schema(schema, "AVRO", references)
        return await work(avro_arrow_encoder, self._core, whole, choice, registers=register, normalize=normalize)


def _as_schema(given: str | Schema, schema_type: str, references: Sequence[SchemaReference]) -> Schema:
    return given if isinstance(given, Schema) else Schema(given, schema_type, tuple(references))


def _prepared(make: Any, subjects: Sequence[str]) -> SchemaDeserializer[Any]:
    deserializer: SchemaDeserializer[Any] = make()
    for subject in subjects:
        deserializer.prepare(subject)
    return deserializer
