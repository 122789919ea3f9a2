"""Classes of Protobuf messages, as protoc would generate them, made of texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClassesForFiles

from semel.web.registry.formats.base import Referenced
from semel.web.registry.formats.protoc import compiled


def messages_of(files: Mapping[str, str]) -> dict[str, Any]:
    """Return the classes of all messages in files, by full name. Each file comes after those that it imports."""
    pool, done = DescriptorPool(), list[Referenced]()
    known: set[str] = set()
    for name, text in files.items():
        for file in compiled(text, done):
            if file.name.startswith("semel-"):
                file.name = name
            if file.name not in known:
                known.add(file.name)
                pool.Add(file)
        done.append(Referenced(name, text))
    found: dict[str, Any] = {}
    for name, kind in GetMessageClassesForFiles(list(files), pool).items():
        found[name] = kind
        found.update({f"{name}.{nested.name}": getattr(kind, nested.name) for nested in kind.DESCRIPTOR.nested_types})
    return found
