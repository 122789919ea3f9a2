"""A topic's settings: where each value is from, and changes, which are shown before they are made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from semel.web.console.visit import Handler, Visit
from semel.web.problems import Problem

if TYPE_CHECKING:
    from semel.sdk.admin.core import ConfigEntry

_OWN: Final = "this topic"
_ORIGINS: Final = {
    "DYNAMIC_TOPIC": _OWN,
    "DYNAMIC_BROKER": "the node, changed while it runs",
    "DYNAMIC_DEFAULT_BROKER": "all nodes, changed while they run",
    "FILE": "the node's file",
    "ENVIRONMENT": "the node's environment",
    "FLAG": "the node's command line",
    "DEFAULT": "default",
}
_SET: Final = "set:"
_RESET: Final = "reset:"


async def _settings(visit: Visit) -> Response:
    name = visit.needed("name")
    await visit.admin.topic(name)  # says at once that there is none
    entries = sorted(await visit.admin.topic_configs(name), key=lambda entry: entry.name)
    return visit.html("topic_settings.html", topic=name, entries=[(one, origin(one)) for one in entries])


def origin(entry: ConfigEntry) -> str:
    """Return in words where a setting's value is from."""
    return _ORIGINS.get(entry.source, entry.source)


async def _preview(visit: Visit) -> Response:
    """Show what a form would change, checked by the node; nothing is changed."""
    name = visit.needed("name")
    await visit.admin.topic(name)
    entries = {entry.name: entry for entry in await visit.admin.topic_configs(name)}
    changes, resets = _wanted(visit)
    resets = [each for each in resets if each in entries and origin(entries[each]) == _OWN]
    changes = {
        each: value
        for each, value in changes.items()
        if each not in resets and (each not in entries or entries[each].value != value)
    }
    if changes or resets:
        await visit.admin.alter_topic_configs(name, changes=changes, remove=resets, validate_only=True)
    rows = [(each, entries[each].value if each in entries else "", value) for each, value in sorted(changes.items())]
    return visit.html("topic_settings_preview.html", topic=name, rows=rows, resets=[entries[one] for one in resets])


async def _change(visit: Visit) -> Response:
    name = visit.needed("name")
    changes, resets = _wanted(visit)
    if not changes and not resets:
        raise Problem(400, "nothing is to be changed: go back, and change a value first")
    await visit.admin.topic(name)
    await visit.admin.alter_topic_configs(name, changes=changes, remove=resets)
    return visit.to("topic/settings", name=name, done="settings")


def _wanted(visit: Visit) -> tuple[dict[str, str], list[str]]:
    changes = {name.removeprefix(_SET): value.strip() for name, value in visit.fields.items() if name.startswith(_SET)}
    resets = [name.removeprefix(_RESET) for name in visit.fields if name.startswith(_RESET)]
    return changes, resets


PAGES: Final[tuple[tuple[str, Handler], ...]] = (("topic/settings", _settings),)
CHANGES: Final[tuple[tuple[str, Handler], ...]] = (
    ("topic/settings/preview", _preview),
    ("topic/settings", _change),
)
