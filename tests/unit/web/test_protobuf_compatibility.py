"""What Protobuf's encoding allows ("Updating A Message Type"), as Confluent documents it."""

from __future__ import annotations

import base64

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from semel.web.registry.formats import protobuf
from semel.web.registry.formats.base import DIFFERENCES_MAX, InvalidSchemaError, Referenced
from semel.web.registry.formats.protobuf import Protobuf, ProtobufParsed

PROTOBUF = Protobuf()
PROTO3 = 'syntax = "proto3"; package p; '
PROTO2 = 'syntax = "proto2"; package p; '
CASES: list[tuple[str, str, list[str]]] = [
    ("message M { int32 a = 1; string b = 2; }", "message M { int32 a = 1; }", []),
    ("message M { }", "message M { int32 a = 1; }", []),
    ("message M { int64 b = 1; }", "message M { bool a = 1; }", []),
    ("message M { sint64 a = 1; }", "message M { sint32 a = 1; }", []),
    ("message M { sint32 a = 1; }", "message M { int32 a = 1; }", ["FIELD_SCALAR_KIND_CHANGED"]),
    ("message M { bytes a = 1; }", "message M { string a = 1; }", []),
    ("message M { M a = 1; }", "message M { string a = 1; }", ["FIELD_KIND_CHANGED"]),
    ("message M { repeated string a = 1; }", "message M { string a = 1; }", []),
    ("message M { repeated int32 a = 1; }", "message M { int32 a = 1; }", ["FIELD_NUMERIC_LABEL_CHANGED"]),
    ("message N { }", "message M { }", ["MESSAGE_REMOVED"]),
    ("message M { } message N { }", "message M { }", []),
    ("message M { N a = 1; } message N { }", "message M { M a = 1; } message N { }", ["FIELD_NAMED_TYPE_CHANGED"]),
    ("message M { oneof o { int32 a = 1; } }", "message M { int32 a = 1; }", []),
    (
        "message M { oneof o { int32 a = 1; int32 b = 2; } }",
        "message M { int32 a = 1; int32 b = 2; }",
        ["MULTIPLE_FIELDS_MOVED_TO_ONEOF"],
    ),
    (
        "message M { oneof o { int32 a = 1; int32 b = 2; } }",
        "message M { int32 a = 1; oneof o { int32 b = 2; } }",
        ["FIELDS_MOVED_TO_EXISTING_ONEOF"],
    ),
    (
        "message M { oneof o { int32 a = 1; } }",
        "message M { oneof o { int32 a = 1; int32 b = 2; } }",
        ["ONEOF_FIELD_REMOVED"],
    ),
    ("message M { map<string, int64> a = 1; }", "message M { map<string, int32> a = 1; }", []),
    (
        "message M { map<string, string> a = 1; }",
        "message M { map<string, int32> a = 1; }",
        ["FIELD_SCALAR_KIND_CHANGED"],
    ),
    ("enum E { X = 0; } message M { E a = 1; }", "message M { int32 a = 1; }", []),
]


def parse(text: str, *references: Referenced) -> ProtobufParsed:
    return PROTOBUF.parse(text, references)


@pytest.mark.parametrize(("new", "old", "expected"), CASES)
def test_what_may_change(new: str, old: str, expected: list[str]) -> None:
    found = PROTOBUF.differences(parse(PROTO3 + new), parse(PROTO3 + old))
    assert [each.kind for each in found] == expected


def test_required_fields_neither_come_nor_go() -> None:
    with_it, without = parse(PROTO2 + "message M { required int32 a = 1; }"), parse(PROTO2 + "message M { }")
    assert [each.kind for each in PROTOBUF.differences(with_it, without)] == ["REQUIRED_FIELD_ADDED"]
    assert [each.kind for each in PROTOBUF.differences(without, with_it)] == ["REQUIRED_FIELD_REMOVED"]


def test_a_text_and_its_descriptor_are_the_same_schema() -> None:
    """Confluent's Python client registers descriptors, its Java client texts."""
    common = Referenced("common.proto", PROTO3 + "message C { }")
    text = 'syntax = "proto3"; package p; import "common.proto"; import "google/protobuf/timestamp.proto"; '
    text += "message M { C some_c = 1; google.protobuf.Timestamp at = 2; }"
    written = parse(text, common)
    described = parse(written.serialized, Referenced("common.proto", parse(common.text).serialized))
    assert described.identity == written.identity != parse(text.replace("some_c", "c"), common).identity


@pytest.mark.parametrize(
    "name", ["../a.proto", "/etc/a.proto", "a/../../b.proto", "a\0.proto", "", "semel-schema.proto"]
)
def test_a_reference_can_not_name_a_file_elsewhere(name: str) -> None:
    with pytest.raises(InvalidSchemaError, match="no path"):
        parse(PROTO3 + "message M { }", Referenced(name, PROTO3))


def test_an_import_reads_no_file_of_the_machine() -> None:
    with pytest.raises(InvalidSchemaError, match="etc/hostname"):
        parse('syntax = "proto3"; import "/etc/hostname"; message M { }')


def test_the_message_says_where_and_not_in_which_file() -> None:
    with pytest.raises(InvalidSchemaError, match=r"^line 1:21: ") as caught:
        parse('syntax = "proto3";  nonsense')
    assert "/" not in str(caught.value)


@pytest.mark.parametrize("name", ["/etc/passwd", "/no/such/file", "../../etc/passwd"])
def test_a_descriptor_does_not_tell_which_files_there_are(name: str) -> None:
    described = FileDescriptorProto(name="m.proto", syntax="proto3", dependency=[name])
    with pytest.raises(InvalidSchemaError, match="no path"):
        parse(base64.b64encode(described.SerializeToString()).decode())


def test_fields_are_not_looked_through_for_each_oneof(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 100
    looked: list[FieldDescriptorProto] = []
    is_in = protobuf._in_oneof

    def counted(field: FieldDescriptorProto) -> bool:
        looked.append(field)
        return is_in(field)

    parsed = parse(
        PROTO3 + "message M {" + "".join(f"oneof o{n} {{ int32 a{n} = {n}; }}" for n in range(1, count)) + "}"
    )
    monkeypatch.setattr(protobuf, "_in_oneof", counted)
    assert PROTOBUF.differences(parsed, parsed) == []
    assert len(looked) <= 3 * count


def test_differences_are_told_up_to_a_bound() -> None:
    many = parse(PROTO3 + "".join(f"message M{number} {{ }}" for number in range(DIFFERENCES_MAX + 50)))
    assert len(PROTOBUF.differences(parse(PROTO3 + "message N { }"), many)) == DIFFERENCES_MAX
