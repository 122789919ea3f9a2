"""The registry's REST API through real HTTP: answers and error codes as Confluent's API reference has them."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from http_gateway import Answered, HttpGateway

import semel
from semel.protocol.errors import ErrorCode, FatalError, RetriableError, SemelError, UsageError
from semel.testing import Broker
from semel.web.registry.log import SchemaLog

INT, STRING = '"int"', '"string"'
_names = itertools.count()


def record(*fields: str, name: str = "R", **defaults: int) -> str:
    parts = [{"name": each, "type": "int"} for each in fields]
    parts += [{"name": each, "type": "int", "default": value} for each, value in defaults.items()]
    return json.dumps({"type": "record", "name": name, "fields": parts})


@pytest.fixture
def subject() -> str:
    """A subject that no other test has."""
    return f"subject_{next(_names)}"


def register(gateway: HttpGateway, subject: str, text: str, **more: Any) -> Answered:
    return gateway.ask("POST", f"/subjects/{subject}/versions", {"schema": text, **more})


def failed(answered: Answered) -> tuple[int, int]:
    assert answered.body["message"]
    return answered.status, answered.body["error_code"]


def test_a_schema_is_registered_once(gateway: HttpGateway, subject: str) -> None:
    first = register(gateway, subject, record("a"))
    assert first.status == 200
    again = register(gateway, subject, record("a").replace(" ", "   "))
    assert again.body["id"] == first.body["id"]
    assert gateway.ask("GET", f"/subjects/{subject}/versions").body == [1]
    second = register(gateway, subject, record("a", b=1))
    assert (second.body["id"], second.body["version"]) == (first.body["id"] + 1, 2)


def test_a_schema_has_one_id_in_all_subjects(gateway: HttpGateway, subject: str) -> None:
    one, other = (
        register(gateway, f"{subject}-1", record("x", subject)),
        register(gateway, f"{subject}-2", record("x", subject)),
    )
    schema_id = one.body["id"]
    assert other.body["id"] == schema_id
    users = [f"{subject}-1", f"{subject}-2"]
    assert gateway.ask("GET", f"/schemas/ids/{schema_id}/subjects").body == users
    versions = gateway.ask("GET", f"/schemas/ids/{schema_id}/versions").body
    assert versions == [{"subject": user, "version": 1} for user in users]


def record_of(gateway: HttpGateway, schema_id: int) -> Any:
    return json.loads(gateway.ask("GET", f"/schemas/ids/{schema_id}").body["schema"])


def test_versions_ids_and_latest(gateway: HttpGateway, subject: str) -> None:
    schema_id = register(gateway, subject, record("a")).body["id"]
    register(gateway, subject, record("a", b=1))
    found = gateway.ask("GET", f"/subjects/{subject}/versions/1").body
    assert (found["subject"], found["version"], found["id"]) == (subject, 1, schema_id)
    assert "schemaType" not in found  # it is Avro
    for latest in ("latest", "-1"):
        assert gateway.ask("GET", f"/subjects/{subject}/versions/{latest}").body["version"] == 2
    assert gateway.ask("GET", f"/subjects/{subject}/versions/1/schema").body == record_of(gateway, schema_id)
    assert gateway.ask("GET", f"/schemas/ids/{schema_id}/schema").body == record_of(gateway, schema_id)
    assert gateway.ask("GET", f"/schemas/ids/{schema_id}", fetchMaxId="true").body["maxId"] >= schema_id


def test_a_schema_is_looked_up_by_what_it_says(gateway: HttpGateway, subject: str) -> None:
    path = f"/subjects/{subject}"
    assert failed(gateway.ask("POST", path, {"schema": INT})) == (404, 40401)
    register(gateway, subject, record("a"))
    assert failed(gateway.ask("POST", path, {"schema": record("b")})) == (404, 40403)
    assert gateway.ask("POST", path, {"schema": record("a")}).body["version"] == 1
    gateway.ask("DELETE", f"{path}/versions/1")
    assert failed(gateway.ask("POST", path, {"schema": record("a")})) == (404, 40401)
    assert gateway.ask("POST", path, {"schema": record("a")}, deleted="true").body["version"] == 1


def test_what_does_not_exist(gateway: HttpGateway, subject: str) -> None:
    assert failed(gateway.ask("GET", f"/subjects/{subject}/versions")) == (404, 40401)
    assert failed(gateway.ask("GET", f"/subjects/{subject}/versions/1")) == (404, 40401)
    register(gateway, subject, INT)
    assert failed(gateway.ask("GET", f"/subjects/{subject}/versions/2")) == (404, 40402)
    for version in ("0", "-2", "first", str(1 << 31), "00000000001" + "0" * 5_000):
        assert failed(gateway.ask("GET", f"/subjects/{subject}/versions/{version}")) == (422, 42202)
    assert failed(gateway.ask("GET", "/schemas/ids/999999")) == (404, 40403)
    assert failed(gateway.ask("GET", "/schemas/ids/x")) == (404, 40403)
    assert failed(gateway.ask("GET", f"/config/{subject}")) == (404, 40408)
    assert failed(gateway.ask("GET", f"/mode/{subject}")) == (404, 40409)
    assert failed(gateway.ask("GET", "/nothing")) == (404, 404)
    assert failed(gateway.ask("PATCH", "/subjects")) == (405, 405)


@pytest.mark.parametrize(
    "body",
    [
        {"schema": "{"},
        {"schema": ""},
        {"schema": 5},
        {},
        {"schema": INT, "schemaType": "XML"},
        {"schema": INT, "references": [{"name": "a"}]},
        {"schema": INT, "references": [{"name": "a", "subject": "nowhere", "version": 1}]},
        {"schema": '"\ud800"'},
        {"schema": '"\\ud800"'},
        {"schema": "null"},
        {"schema": "{}"},
        {"schema": '{"type": "int", "limit": 1e999}'},
        {"schema": '{"type": "int", "limit": NaN}'},
        {"schema": '{"default": 1e999}', "schemaType": "JSON"},
        {"schema": '{"default": -Infinity}', "schemaType": "JSON"},
        {"schema": '{"title": "\\ud800"}', "schemaType": "JSON"},
        {"schema": '{"$schema": 5}', "schemaType": "JSON"},
        {"schema": '{"$schema": []}', "schemaType": "JSON"},
        {"schema": INT, "metadata": {"properties": {"a": float("inf")}}},
        {"schema": INT, "metadata": {"properties": {"a": float("nan")}}},
        {"schema": INT, "metadata": {"properties": {"\ud800": "a"}}},
        {"schema": INT, "ruleSet": {"a": json.loads("[" * 300 + "]" * 300)}},
        {"schema": INT, "metadata": 5},
        {"schema": INT, "metadata": {"tags": {"a": "b"}}},
        {"schema": INT, "metadata": {"properties": {"a": 5}}},
        {"schema": INT, "metadata": {"sensitive": "a"}},
        {"schema": INT, "ruleSet": [1]},
        {"schema": INT, "ruleSet": {"a": []}},
        {"schema": INT, "ruleSet": {"domainRules": "a"}},
        {"schema": INT, "ruleSet": {"domainRules": [{"kind": "CONDITION"}]}},
        {"schema": '{"type": 5}', "schemaType": "JSON"},
        {"schema": "nonsense", "schemaType": "PROTOBUF"},
        {"schema": INT, "id": "x"},
    ],
)
def test_what_is_no_schema(gateway: HttpGateway, subject: str, body: dict[str, Any]) -> None:
    assert failed(gateway.ask("POST", f"/subjects/{subject}/versions", body)) == (422, 42201)
    assert failed(gateway.ask("GET", f"/subjects/{subject}/versions")) == (404, 40401)


def test_a_body_that_is_no_json(gateway: HttpGateway, subject: str) -> None:
    assert failed(gateway.ask("POST", f"/subjects/{subject}/versions", b"{")) == (400, 400)
    assert failed(gateway.ask("POST", f"/subjects/{subject}/versions", b"[" * 100_000)) == (400, 400)


LEVELS = {
    "BACKWARD": (True, False),
    "FORWARD": (False, True),
    "FULL": (False, False),
    "NONE": (True, True),
}


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_says_what_may_follow(gateway: HttpGateway, subject: str, level: str) -> None:
    """Without its field an old reader, which has no default, can't read; with another one, a new reader can't."""
    assert gateway.ask("PUT", f"/config/{subject}", {"compatibility": level}).body == {"compatibility": level}
    register(gateway, subject, record("a"))
    for text, may in zip((record(), record("a", "b")), LEVELS[level], strict=True):
        answered = gateway.ask("POST", f"/compatibility/subjects/{subject}/versions/latest", {"schema": text})
        assert answered.body == {"is_compatible": may}
        if not may:
            assert failed(register(gateway, subject, text)) == (409, 409)


def test_a_transitive_level_looks_at_all_versions(gateway: HttpGateway, subject: str) -> None:
    """Each follows from the one before; the last one lacks what the first one needs."""
    register(gateway, subject, record("a"))
    register(gateway, subject, record(a=1))
    register(gateway, subject, record())
    new = {"schema": record(a=2)}
    assert gateway.ask("POST", f"/compatibility/subjects/{subject}/versions", new).body == {"is_compatible": True}
    gateway.ask("PUT", f"/config/{subject}", {"compatibility": "FORWARD_TRANSITIVE"})
    verbose = gateway.ask(
        "POST", f"/compatibility/subjects/{subject}/versions", {"schema": record("b")}, verbose="true"
    )
    assert verbose.body["is_compatible"] is False
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in verbose.body["messages"][0]
    assert "{oldSchemaVersion: 1}" in verbose.body["messages"]


def test_compatibility_with_one_version(gateway: HttpGateway, subject: str) -> None:
    path = f"/compatibility/subjects/{subject}/versions"
    assert gateway.ask("POST", f"{path}/latest", {"schema": INT}).body == {"is_compatible": True}
    assert failed(gateway.ask("POST", f"{path}/1", {"schema": INT})) == (404, 40401)
    register(gateway, subject, INT)
    assert failed(gateway.ask("POST", f"{path}/2", {"schema": INT})) == (404, 40402)
    assert gateway.ask("POST", f"{path}/1", {"schema": STRING}).body == {"is_compatible": False}
    assert gateway.ask("POST", f"{path}/1", {"schema": '"long"'}).body == {"is_compatible": True}


def test_another_language_is_not_compatible(gateway: HttpGateway, subject: str) -> None:
    register(gateway, subject, INT)
    assert failed(register(gateway, subject, '{"type": "integer"}', schemaType="JSON")) == (409, 409)


def test_deleting_takes_two_steps(gateway: HttpGateway, subject: str) -> None:
    path = f"/subjects/{subject}"
    schema_id = register(gateway, subject, record("a", subject)).body["id"]
    assert failed(gateway.ask("DELETE", path, permanent="true")) == (404, 40405)
    assert failed(gateway.ask("DELETE", f"{path}/versions/1", permanent="true")) == (404, 40407)
    assert gateway.ask("DELETE", path).body == [1]
    assert failed(gateway.ask("DELETE", path)) == (404, 40404)
    assert failed(gateway.ask("DELETE", f"{path}/versions/1")) == (404, 40406)
    assert subject not in gateway.ask("GET", "/subjects").body
    assert subject in gateway.ask("GET", "/subjects", deleted="true").body
    assert gateway.ask("GET", f"/schemas/ids/{schema_id}").status == 200  # records have it
    assert gateway.ask("DELETE", path, permanent="true").body == [1]
    assert failed(gateway.ask("DELETE", path, permanent="true")) == (404, 40401)
    assert failed(gateway.ask("GET", f"/schemas/ids/{schema_id}")) == (404, 40403)
    assert register(gateway, subject, record("other", subject)).body["id"] > schema_id


def test_a_deleted_version_is_followed_by_the_next_number(gateway: HttpGateway, subject: str) -> None:
    register(gateway, subject, record("a"))
    assert gateway.ask("DELETE", f"/subjects/{subject}/versions/latest").body == 1
    assert register(gateway, subject, record("a")).body["version"] == 2
    assert gateway.ask("GET", f"/subjects/{subject}/versions", deleted="true").body == [1, 2]
    assert gateway.ask("GET", f"/subjects/{subject}/versions", deletedOnly="true").body == [1]


def test_what_is_referenced_can_not_be_deleted(gateway: HttpGateway, subject: str) -> None:
    register(gateway, subject, record("a", name="Inner"))
    outer = json.dumps({"type": "record", "name": "Outer", "fields": [{"name": "i", "type": "Inner"}]})
    reference = {"name": "Inner", "subject": subject, "version": -1}
    schema_id = register(gateway, f"{subject}-outer", outer, references=[reference]).body["id"]
    found = gateway.ask("GET", f"/schemas/ids/{schema_id}").body["references"]
    assert found == [{"name": "Inner", "subject": subject, "version": 1}]  # the latest one then
    assert gateway.ask("GET", f"/subjects/{subject}/versions/1/referencedby").body == [schema_id]
    assert failed(gateway.ask("DELETE", f"/subjects/{subject}")) == (422, 42206)
    assert failed(gateway.ask("DELETE", f"/subjects/{subject}/versions/1")) == (422, 42206)
    gateway.ask("DELETE", f"/subjects/{subject}-outer")
    assert gateway.ask("DELETE", f"/subjects/{subject}").body == [1]


def test_a_schema_that_needs_the_same_version_under_two_names_can_be_deleted(
    gateway: HttpGateway, subject: str
) -> None:
    register(gateway, subject, '{"type":"string"}', schemaType="JSON")
    references = [{"name": name, "subject": subject, "version": 1} for name in ("a.json", "b.json")]
    text = json.dumps({"properties": {"a": {"$ref": "a.json"}, "b": {"$ref": "b.json"}}})
    assert register(gateway, f"{subject}-outer", text, schemaType="JSON", references=references).status == 200
    assert failed(gateway.ask("DELETE", f"/subjects/{subject}")) == (422, 42206)
    assert gateway.ask("DELETE", f"/subjects/{subject}-outer").body == [1]
    assert gateway.ask("DELETE", f"/subjects/{subject}-outer", permanent="true").body == [1]
    assert gateway.ask("DELETE", f"/subjects/{subject}").body == [1]


def test_modes(gateway: HttpGateway, subject: str) -> None:
    path = f"/mode/{subject}"
    assert gateway.ask("GET", "/mode").body == {"mode": "READWRITE"}
    assert failed(gateway.ask("PUT", path, {"mode": "SLEEPING"})) == (422, 42204)
    assert gateway.ask("PUT", path, {"mode": "READONLY"}).body == {"mode": "READONLY"}
    assert failed(register(gateway, subject, INT)) == (422, 42205)
    assert gateway.ask("DELETE", path).body == {"mode": "READONLY"}
    assert failed(register(gateway, subject, INT, id=77_000)) == (422, 42205)
    register(gateway, subject, INT)
    assert failed(gateway.ask("PUT", path, {"mode": "IMPORT"})) == (422, 42205)
    assert gateway.ask("PUT", path, {"mode": "IMPORT"}, force="true").status == 200


def test_importing_keeps_ids_and_versions(gateway: HttpGateway, subject: str) -> None:
    context = f":.{subject}:"
    gateway.ask("PUT", f"/mode/{context}", {"mode": "IMPORT"})
    one = register(gateway, f"{context}s", record("a"), id=700, version=3)
    assert (one.body["id"], one.body["version"]) == (700, 3)
    assert register(gateway, f"{context}s", record("a"), id=700, version=3).body == one.body
    assert failed(register(gateway, f"{context}s", record("b"), id=700, version=4)) == (422, 42205)
    assert failed(register(gateway, f"{context}s", record("b"), id=701, version=3)) == (422, 42205)
    gateway.ask("DELETE", f"/mode/{context}")
    assert register(gateway, f"{context}t", record("c")).body["id"] == 701


def test_contexts_are_apart(gateway: HttpGateway, subject: str) -> None:
    name = f".{subject}"
    schema_id = register(gateway, f":{name}:s", record("in", "context")).body["id"]
    assert schema_id == 1
    assert name in gateway.ask("GET", "/contexts").body
    assert gateway.ask("GET", "/subjects", subjectPrefix=f":{name}:").body == [f":{name}:s"]
    assert gateway.ask("GET", f"/contexts/{name}/subjects").body == [f":{name}:s"]
    assert gateway.ask("GET", f"/contexts/{name}/schemas/ids/1").body["schema"] == gateway.ask(
        "GET", "/schemas/ids/1", subject=f":{name}:s"
    ).body["schema"]  # fmt: skip


def test_global_settings(gateway: HttpGateway, subject: str) -> None:
    assert gateway.ask("GET", "/config").body == {"compatibilityLevel": "BACKWARD"}
    assert failed(gateway.ask("PUT", "/config", {"compatibility": "SIDEWAYS"})) == (422, 42203)
    assert failed(gateway.ask("PUT", "/config", {"compatibility": "FULL", "alias": "x"})) == (422, 42203)
    assert gateway.ask("PUT", "/config", {"compatibility": "full"}).body == {"compatibility": "FULL"}
    assert gateway.ask("GET", f"/config/{subject}", defaultToGlobal="true").body == {"compatibilityLevel": "FULL"}
    assert gateway.ask("DELETE", "/config").body == {"compatibilityLevel": "FULL"}
    assert gateway.ask("GET", "/config").body == {"compatibilityLevel": "BACKWARD"}


def test_normalizing(gateway: HttpGateway, subject: str) -> None:
    one, other = ('{"type":"object","title":"t"}', '{"title":"t","type":"object"}')
    assert register(gateway, subject, one, schemaType="JSON").body["id"] != register(
        gateway, subject, other, schemaType="JSON"
    ).body["id"]  # fmt: skip
    path = f"/subjects/{subject}-n/versions"
    found = [
        gateway.ask("POST", path, {"schema": text, "schemaType": "JSON"}, normalize="true") for text in (one, other)
    ]
    assert found[0].body == found[1].body


def test_a_subject_may_have_any_characters(gateway: HttpGateway) -> None:
    name = "a/b%2Fc ö"
    quoted = "a%2Fb%252Fc%20%C3%B6"
    assert register(gateway, quoted, INT).status == 200
    assert name in gateway.ask("GET", "/subjects").body
    assert gateway.ask("GET", f"/subjects/{quoted}/versions").body == [1]
    assert failed(register(gateway, "a%0Ab", INT)) == (422, 42208)


def test_content_types(gateway: HttpGateway) -> None:
    own = "application/vnd.schemaregistry.v1+json"
    for accept, expected in ((own, own), ("application/json", "application/json"), ("*/*", own), ("", own)):
        assert gateway.ask("GET", "/schemas/types", headers={"Accept": accept}).headers["content-type"] == expected
    assert sorted(gateway.ask("GET", "/schemas/types").body) == ["AVRO", "JSON", "PROTOBUF"]


def test_lists_have_pages(gateway: HttpGateway, subject: str) -> None:
    for number in range(3):
        register(gateway, f"{subject}-{number}", INT)
    found = gateway.ask("GET", "/subjects", subjectPrefix=f"{subject}-", offset=1, limit=1).body
    assert found == [f"{subject}-1"]
    assert [each["subject"] for each in gateway.ask("GET", "/schemas", subjectPrefix=f"{subject}-2").body] == [
        f"{subject}-2"
    ]
    assert gateway.ask("GET", "/subjects", offset="x").status == 422


def test_an_import_leaves_ids_for_new_schemas(gateway: HttpGateway, subject: str) -> None:
    """One of the highest id ended registration in its context, for good."""
    name = f":.{subject}:s"
    assert gateway.ask("PUT", f"/mode/{name}", {"mode": "IMPORT"}).status == 200
    assert failed(register(gateway, name, INT, id=(1 << 31) - 1, version=1)) == (422, 42205)
    assert register(gateway, name, INT, id=2_000_000_000, version=1).status == 200
    assert gateway.ask("PUT", f"/mode/{name}", {"mode": "READWRITE"}, force="true").status == 200
    assert register(gateway, f":.{subject}:t", '"string"').body["id"] == 2_000_000_001


def test_metadata_is_kept_and_found(gateway: HttpGateway, subject: str) -> None:
    register(gateway, subject, INT, metadata={"properties": {"owner": "me"}}, ruleSet={"domainRules": []})
    register(gateway, subject, '"long"')
    found = gateway.ask("GET", f"/subjects/{subject}/metadata", key="owner", value="me").body
    assert (found["version"], found["metadata"], found["ruleSet"]) == (
        1, {"properties": {"owner": "me"}}, {"domainRules": []}
    )  # fmt: skip
    assert failed(gateway.ask("GET", f"/subjects/{subject}/metadata", key="owner", value="you")) == (404, 40403)


def test_a_gateway_that_starts_later_knows_all_of_it(gateway: HttpGateway, broker: Broker, subject: str) -> None:
    register(gateway, subject, record("a"))
    gateway.ask("PUT", f"/config/{subject}", {"compatibility": "NONE"})
    with HttpGateway(broker.bootstrap) as other:
        assert (
            other.ask("GET", "/subjects", deleted="true").body == gateway.ask("GET", "/subjects", deleted="true").body
        )
        assert register(other, subject, STRING).body["version"] == 2  # which fences the first one
        found = gateway.ask("GET", f"/subjects/{subject}/versions/2")
        assert found.status == 200  # it is looked for until the end of the topic
        assert register(gateway, subject, INT).body["version"] == 3


def test_the_topic_is_one_partition_and_compacted(gateway: HttpGateway, broker: Broker) -> None:
    gateway.ask("GET", "/subjects")
    import semel

    with semel.Admin(broker.bootstrap) as admin:
        assert len(admin.topic("_schemas").partitions) == 1
        assert [entry.value for entry in admin.topic_configs("_schemas", ["cleanup.policy"])] == ["compact"]


def test_a_number_that_is_too_large_is_stored_nowhere(gateway: HttpGateway, subject: str) -> None:
    body = b'{"schema": "\\"int\\"", "metadata": {"properties": {"a": 1e999}}}'
    assert failed(gateway.ask("POST", f"/subjects/{subject}/versions", body)) == (422, 42201)
    assert gateway.ask("GET", "/schemas").status == 200


def test_records_of_others_do_not_break_lists(subject: str) -> None:
    """What other programs have written into the topic, or a gateway before it refused this."""
    deep = "[" * 900 + "]" * 900
    records = [
        ("SCHEMA", '"schema":"\\"int\\"","metadata":{"a":1e999,"b":NaN}'),
        (
            "SCHEMA",
            '"schema":"\\"int\\"","metadata":{"a":"\\ud800"},'
            '"references":[{"name":"\\ud800","subject":"","version":1}]',
        ),
        ("SCHEMA", f'"schema":"{{}}","schemaType":"XML","ruleSet":{{"a":{deep}}}'),
        ("CONFIG", '"compatibilityLevel":1e999'),
    ]
    with Broker() as own, HttpGateway(own.bootstrap) as first, semel.Producer(own.bootstrap) as producer:
        assert first.ask("GET", "/subjects").body == []
        for number, (keytype, rest) in enumerate(records, 1):
            key = f'{{"keytype":"{keytype}","subject":"{subject}","version":{number},"magic":1}}'
            value = f'{{"subject":"{subject}","version":{number},"id":{number},"deleted":false,{rest}}}'
            producer.send("_schemas", value.encode(), key=key.encode()).result()
        with HttpGateway(own.bootstrap) as gateway:
            assert [each["version"] for each in gateway.ask("GET", "/schemas").body] == [1, 2, 3]
            assert gateway.ask("GET", f"/subjects/{subject}/versions/1").body["metadata"] == {"a": None, "b": None}
            assert gateway.ask("GET", f"/config/{subject}").status == 200
            assert failed(register(gateway, subject, INT)) == (409, 409)  # it is not of the type XML


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FatalError("this producer has failed; close it and make a new one (broken)"), (500, 50001)),
        (FatalError("this producer has failed; close it (no)", ErrorCode.TOPIC_AUTHORIZATION_FAILED), (403, 403)),
        (FatalError("this producer has failed; close it (large)", ErrorCode.MESSAGE_TOO_LARGE), (413, 413)),
        (RetriableError("this producer waits", ErrorCode.REQUEST_TIMED_OUT), (503, 50003)),
        (UsageError("this producer is closed; make a new one"), (500, 50001)),
    ],
)
def test_a_failure_is_explained_in_words_of_http(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, error: SemelError, expected: tuple[int, int]
) -> None:
    async def failing(*_: object) -> None:
        raise error

    monkeypatch.setattr(SchemaLog, "change", failing)
    with HttpGateway(broker.bootstrap) as gateway:
        answered = register(gateway, "fails", INT)
    assert failed(answered) == expected
    assert "producer" not in answered.body["message"]


def test_messages_are_bounded_in_both_directions_together(gateway: HttpGateway, subject: str) -> None:
    gateway.ask("PUT", f"/config/{subject}", {"compatibility": "FULL"})
    register(gateway, subject, record(*(f"a{number}" for number in range(80))))
    new = {"schema": record(*(f"b{number}" for number in range(80)))}
    answered = gateway.ask("POST", f"/compatibility/subjects/{subject}/versions", new, verbose="true")
    assert len(answered.body["messages"]) == 100 + len(["the version", "the level"])
