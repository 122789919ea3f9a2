"""What `$ref` of a JSON Schema stands for: parts of itself, schemas with an `$id`, and those that it references."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote, urldefrag, urljoin

from semel.web.registry.formats.base import InvalidSchemaError

_HOPS_MAX: Final = 50


class Documents:
    """The schemas that a schema can refer to, by their addresses."""

    def __init__(self) -> None:
        self._by_address: dict[str, Any] = {}
        self._base_of: dict[int, str] = {}

    def add(self, name: str, document: Any) -> None:
        """Make a document known under a name, and under the `$id` of it and of what is in it."""
        self._by_address.setdefault(name, document)
        self._index(document, name)

    def _index(self, node: Any, base: str) -> None:
        if isinstance(node, list):
            for each in node:
                self._index(each, base)
        elif isinstance(node, dict):
            own = node.get("$id", node.get("id"))
            if isinstance(own, str):
                base = urljoin(base, own)
                self._by_address[urldefrag(base).url] = node
            anchor = node.get("$anchor")
            if isinstance(anchor, str):
                self._by_address[f"{urldefrag(base).url}#{anchor}"] = node
            self._base_of[id(node)] = base
            for each in node.values():
                self._index(each, base)

    def resolved(self, node: Any) -> Any:
        """Return what a schema with a `$ref` stands for, with what stands beside the `$ref`; others as they are.

        Raises `InvalidSchemaError` for a `$ref` that leads nowhere, or round in a circle.
        """
        for _ in range(_HOPS_MAX):
            if not isinstance(node, dict) or not isinstance(node.get("$ref"), str):
                return node
            others = {name: value for name, value in node.items() if name not in ("$ref", "definitions", "$defs")}
            target = self._target(node["$ref"], self._base_of.get(id(node), ""))
            if others and isinstance(target, dict):
                target = {**others, "allOf": [*others.get("allOf", ()), target]}
            node = target
        raise InvalidSchemaError("a $ref leads back to itself")

    def _target(self, reference: str, base: str) -> Any:
        address = urljoin(base, reference) if base else reference
        for candidate in (address, reference):
            if candidate in self._by_address:
                return self._by_address[candidate]
            url, fragment = urldefrag(candidate)
            document = self._by_address.get(url, self._by_address.get(url or base))
            if document is not None and (not fragment or fragment.startswith("/")):
                return _pointed(document, fragment, reference)
        raise InvalidSchemaError(f"$ref {reference!r} leads nowhere: add it to the references")


def _pointed(document: Any, pointer: str, reference: str) -> Any:
    node = document
    for part in pointer.split("/")[1:] if pointer else ():
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and name in node:
            node = node[name]
        elif isinstance(node, list) and name.isdecimal() and int(name) < len(node):
            node = node[int(name)]
        else:
            raise InvalidSchemaError(f"$ref {reference!r} leads nowhere")
    return node
