"""/v3/clusters/{cluster_id}/topics/{topic_name}/configs: list, get, change and reset settings of a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from semel.web.problems import Problem
from semel.web.rest.bodies import Fields, json_body, wrong
from semel.web.rest.service import Service, link, listing, named, resource

if TYPE_CHECKING:
    from semel.sdk.admin.core import ConfigEntry

_CHANGES_MAX: Final = 100


class Configs:
    """The endpoints."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def list_configs(self, request: Request) -> Response:
        cluster_id = await self._service.cluster_id(request)
        topic = named(request, "topic_name")
        entries = await self._service.admin(request).topic_configs(topic)
        data = [_config(request, cluster_id, topic, entry) for entry in entries]
        return listing("KafkaTopicConfigList", request, data)

    async def get_config(self, request: Request) -> Response:
        cluster_id = await self._service.cluster_id(request)
        topic, name = named(request, "topic_name"), named(request, "name")
        for entry in await self._service.admin(request).topic_configs(topic):
            if entry.name == name:
                return JSONResponse(_config(request, cluster_id, topic, entry))
        raise Problem(404, f"Config {name[:200]} cannot be found: GET .../configs lists all", error_code=404)

    async def set_config(self, request: Request) -> Response:
        await self._service.cluster_id(request)
        value = Fields(await json_body(request), "", ("value",)).raw("value")
        if not isinstance(value, str):
            raise wrong('value is a text, also for numbers: "3600000"')
        topic, name = named(request, "topic_name"), named(request, "name")
        await self._service.admin(request).alter_topic_configs(topic, changes={name: value})
        return Response(status_code=204)

    async def reset_config(self, request: Request) -> Response:
        await self._service.cluster_id(request)
        topic, name = named(request, "topic_name"), named(request, "name")
        await self._service.admin(request).alter_topic_configs(topic, remove=[name])
        return Response(status_code=204)

    async def alter_configs(self, request: Request) -> Response:
        await self._service.cluster_id(request)
        fields = Fields(await json_body(request), "", ("data", "validate_only"))
        changes: dict[str, str] = {}
        remove: list[str] = []
        for number, item in enumerate(fields.items("data", _CHANGES_MAX)):
            change = Fields(item, f"data[{number}]", ("name", "value", "operation"))
            name, operation = change.text("name"), change.text("operation", "SET")
            if name in changes or name in remove:
                raise wrong(f"data names {name[:100]!r} twice")
            if operation == "DELETE":
                remove.append(name)
            elif operation == "SET":
                changes[name] = change.text("value", "")
            else:
                raise wrong(f"{change.name('operation')} is SET or DELETE, not {operation[:100]!r}")
        await self._service.admin(request).alter_topic_configs(
            named(request, "topic_name"),
            changes=changes,
            remove=remove,
            validate_only=fields.flag("validate_only"),
        )
        return Response(status_code=204)


def _config(request: Request, cluster_id: str, topic: str, entry: ConfigEntry) -> dict[str, Any]:
    source = entry.source.upper()
    return resource(
        "KafkaTopicConfig",
        link(request, cluster_id, "topics", topic, "configs", entry.name),
        f"crn:///kafka={cluster_id}/topic={topic}/config={entry.name}",
        cluster_id=cluster_id,
        topic_name=topic,
        name=entry.name,
        value=None if entry.is_sensitive else entry.value,
        is_default=source == "DEFAULT_CONFIG",
        is_read_only=entry.is_read_only,
        is_sensitive=entry.is_sensitive,
        source=source,
        synonyms=[],
    )
