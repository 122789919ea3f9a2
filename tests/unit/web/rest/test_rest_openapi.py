"""The description of the REST API: it has every route, and every route is in it."""

from __future__ import annotations

import re

from gateway_requests import GatewayRequests
from starlette.routing import Route

from semel.web.gateway import Gateway
from semel.web.rest import part


def test_every_route_is_described_and_nothing_else(gateway: GatewayRequests) -> None:
    described = gateway.get(part.OPENAPI_PATH).json
    assert described["openapi"].startswith("3.1")
    served = {
        (route.path, method)
        for route in part.routes(Gateway("localhost:1"))
        if isinstance(route, Route) and route.path != part.OPENAPI_PATH
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert {(path, name.upper()) for path, methods in described["paths"].items() for name in methods} == served
    names = [one["operationId"] for methods in described["paths"].values() for one in methods.values()]
    assert len(set(names)) == len(names) == len(served)


def test_operations_have_their_parameters_and_refer_to_what_is_there(gateway: GatewayRequests) -> None:
    described = gateway.get(part.OPENAPI_PATH).json
    known = described["components"]["responses"]
    for path, methods in described["paths"].items():
        for name, one in methods.items():
            in_path = {each["name"] for each in one["parameters"] if each["in"] == "path"}
            assert in_path == set(re.findall(r"{(\w+)}", path))
            assert one["summary"]
            assert any(status.startswith("2") for status in one["responses"])
            assert ("requestBody" in one) == (name in ("post", "put"))
            for response in one["responses"].values():
                if "$ref" in response:
                    assert response["$ref"].removeprefix("#/components/responses/") in known


def test_the_examples_of_bodies_are_accepted(gateway: GatewayRequests) -> None:
    """They are for the topics orders and input, and a group that has committed nothing."""
    described = gateway.get(part.OPENAPI_PATH).json
    tried = 0
    for topic in ("input", "orders"):
        assert gateway.post("/topics", {"topic_name": topic, "partitions_count": 1}).status == 201
    for path, methods in described["paths"].items():
        for name, one in methods.items():
            if "requestBody" not in one or one["operationId"] == "createTopic":
                continue
            body = one["requestBody"]["content"]["application/json"]["example"]
            given = {"topic_name": "orders", "name": "retention.ms", "consumer_group_id": "other"}
            below = path.replace("/v3/clusters/{cluster_id}", gateway.cluster)
            for parameter, value in given.items():
                below = below.replace(f"{{{parameter}}}", value)
            answer = gateway.request(name.upper(), below, body, {"Idempotency-Key": one["operationId"]})
            if one["operationId"] == "produceRecordsBatch":
                assert answer.status == 400  # it takes no key
                answer = gateway.request(name.upper(), below, body)
            assert str(answer.status) in one["responses"]
            assert answer.status < 300, (path, answer.body)
            tried += 1
    assert tried == 7
