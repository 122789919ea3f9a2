"""The records of `_schemas`, in the form that Confluent documents, and what they make of the registry's state."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.web.registry.records import (
    ConfigSet,
    Content,
    Event,
    IdsGiven,
    ModeSet,
    Reference,
    SchemaErased,
    SchemaStored,
    SubjectDeleted,
    decode,
    encode,
)
from semel.web.registry.state import RegistryState

STORED = SchemaStored("orders-value", 2, 7, Content("JSON", "{}", (Reference("a", "b", 1),)), identity="ab")
DOCUMENTED: list[tuple[Event, str, str | None]] = [
    (
        SchemaStored("s", 1, 1, Content("AVRO", '"int"')),
        '{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}',
        '{"subject":"s","version":1,"id":1,"schema":"\\"int\\"","deleted":false}',
    ),
    (
        STORED,
        '{"keytype":"SCHEMA","subject":"orders-value","version":2,"magic":1}',
        '{"subject":"orders-value","version":2,"id":7,"schemaType":"JSON",'
        '"references":[{"name":"a","subject":"b","version":1}],"schema":"{}","deleted":false}',
    ),
    (SchemaErased("s", 1), '{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}', None),
    (
        SubjectDeleted("s", 3),
        '{"keytype":"DELETE_SUBJECT","subject":"s","magic":0}',
        '{"subject":"s","version":3}',
    ),
    (
        ConfigSet("", {"compatibilityLevel": "FULL"}),
        '{"keytype":"CONFIG","subject":null,"magic":0}',
        '{"compatibilityLevel":"FULL"}',
    ),
    (ConfigSet("s", None), '{"keytype":"CONFIG","subject":"s","magic":0}', None),
    (ModeSet("s", "READONLY"), '{"keytype":"MODE","subject":"s","magic":0}', '{"mode":"READONLY"}'),
    (IdsGiven({".": 9}), '{"keytype":"NOOP","magic":0}', '{"ids":{".":9}}'),
]


@pytest.mark.parametrize(("event", "key", "value"), DOCUMENTED)
def test_records_are_written_and_read_as_documented(event: Event, key: str, value: str | None) -> None:
    written = encode(event)
    assert (written.key.decode(), None if written.value is None else written.value.decode()) == (key, value)
    assert decode(written.key, written.value, dict(written.headers)) == event


@pytest.mark.parametrize(
    "key", ['{"keytype":"NOOP","magic":0}', '{"keytype":"CLEAR_SUBJECT","subject":"s","magic":0}', '{"keytype":"X"}']
)
def test_what_the_registry_has_no_use_for_is_passed_over(key: str) -> None:
    assert decode(key.encode(), None, {}) is None


@given(st.binary(max_size=60), st.none() | st.binary(max_size=60))
def test_a_damaged_record_is_an_error_and_nothing_else(key: bytes, value: bytes | None) -> None:
    try:
        decode(key, value, {})
    except ValueError:
        return


_NAMES = st.sampled_from(["keytype", "subject", "version", "schema", "id", "references", "mode", "ids"])
_VALUES = st.recursive(
    st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(_NAMES, inner), max_leaves=8
)


@given(_VALUES)
def test_a_value_of_another_shape_is_an_error_and_nothing_else(value: object) -> None:
    for keytype in ("SCHEMA", "CONFIG", "MODE", "DELETE_SUBJECT", "NOOP"):
        try:
            decode(
                json.dumps({"keytype": keytype, "subject": "s", "version": 1}).encode(), json.dumps(value).encode(), {}
            )
        except ValueError:
            continue


def state_of(*events: Event) -> RegistryState:
    state = RegistryState()
    for event in events:
        state.replay(event)
    return state


def stored(subject: str, version: int, schema_id: int, identity: str = "x") -> SchemaStored:
    return SchemaStored(subject, version, schema_id, Content("AVRO", f'"{identity}"'), identity=identity)


def test_deleting_a_subject_is_about_the_versions_before_it() -> None:
    state = state_of(stored("s", 1, 1), SubjectDeleted("s", 1), stored("s", 2, 1))
    assert [each.version for each in state.versions("s")] == [2]
    assert [each.version for each in state.versions("s", with_deleted=True)] == [1, 2]


def test_an_id_is_not_given_again_after_its_schema_is_gone_for_good() -> None:
    state = state_of(stored("s", 1, 5), IdsGiven({".": 5}), SchemaErased("s", 1))
    assert state.highest_id(".") == 5
    assert state.id_of(".", "x") is None
    assert state.content(".", 5) is None
    # And a gateway that starts after compaction has taken the schema away knows it, too.
    assert state_of(IdsGiven({".": 5})).highest_id(".") == 5


def test_contexts_have_ids_of_their_own() -> None:
    state = state_of(stored("s", 1, 1, "a"), stored(":.eu:s", 1, 1, "b"))
    assert state.id_of(".eu", "b") == 1
    assert state.id_of(".", "b") is None
    assert state.contexts() == [".", ".eu"]


def test_settings_of_a_subject_go_before_those_of_its_context_and_of_all() -> None:
    state = state_of(ConfigSet("", {"compatibilityLevel": "FULL"}), ConfigSet(":.eu:", {"compatibilityLevel": "NONE"}))
    assert [state.compatibility(name) for name in ("s", ":.eu:s")] == ["FULL", "NONE"]
    state.replay(ConfigSet(":.eu:s", {"compatibilityLevel": "FORWARD"}))
    assert state.compatibility(":.eu:s") == "FORWARD"
    state.replay(ConfigSet("", None))
    assert state.compatibility("s") == "BACKWARD"


_SUBJECTS = st.sampled_from(["a", "b", ":.eu:a"])
_NUMBERS = st.integers(1, 3)
_REFERENCES = st.lists(st.builds(Reference, st.sampled_from(["x", "y"]), _SUBJECTS, _NUMBERS), max_size=3)
_CONTENTS = st.builds(Content, st.just("AVRO"), st.sampled_from(['"int"', '"long"']), _REFERENCES.map(tuple))
_EVENTS = (
    st.builds(SchemaStored, _SUBJECTS, _NUMBERS, _NUMBERS, _CONTENTS, st.booleans(), st.sampled_from(["", "i", "j"]))
    | st.builds(SchemaErased, _SUBJECTS, _NUMBERS)
    | st.builds(SubjectDeleted, _SUBJECTS, _NUMBERS)
)


@settings(max_examples=600, deadline=None)
@given(st.lists(_EVENTS, max_size=12))
def test_after_any_records_the_state_is_what_is_left_of_them(events: list[Event]) -> None:
    """What is deleted leaves nothing behind, however it was stored, and no record is one that can't be applied."""
    state = state_of(*events)
    left = state_of(*state.all_versions())
    for subject in ("a", "b", ":.eu:a"):
        assert state.versions(subject, with_deleted=True) == left.versions(subject, with_deleted=True)
        for number in (1, 2, 3):
            assert state.referencing(subject, number) == left.referencing(subject, number)
    for context in (".", ".eu"):
        assert [state.users(context, each) for each in (1, 2, 3)] == [left.users(context, each) for each in (1, 2, 3)]
        assert [state.id_of(context, each) for each in "ij"] == [left.id_of(context, each) for each in "ij"]


def test_who_references_a_version() -> None:
    user = SchemaStored("u", 1, 2, Content("AVRO", '"u"', (Reference("s", "s", 1),)))
    state = state_of(stored("s", 1, 1), user)
    assert [each.subject for each in state.referencing("s", 1)] == ["u"]
    state.replay(SubjectDeleted("u", 1))
    assert state.referencing("s", 1) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ('{"keytype":"CONFIG","subject":["s"]}', "{}"),
        ('{"keytype":"CONFIG","subject":"s"}', "[]"),
        ('{"keytype":"CONFIG","subject":"s"}', f'{{"a":{"[" * 300}{"]" * 300}}}'),
        ('{"keytype":"SCHEMA","subject":"s","version":1}', '{"subject":"s","version":1e999,"id":1,"schema":""}'),
    ],
)
def test_what_would_break_the_state_is_damaged(key: str, value: str) -> None:
    with pytest.raises(ValueError, match=r"no text|no object|nested|Error"):
        decode(key.encode(), value.encode(), {})
