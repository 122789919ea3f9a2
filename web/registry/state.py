"""What the registry knows: a state machine over the records of `_schemas`. `replay` alone changes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

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
)
from semel.web.registry.subjects import DEFAULT_CONTEXT, parse_subject

BACKWARD: Final = "BACKWARD"
READWRITE: Final = "READWRITE"


class RegistryState:
    """All schemas, settings and modes, by the names of subjects as `str(Subject)` has them."""

    def __init__(self) -> None:
        self.clear()

    # --- Changes ------------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Know nothing, as before the first record."""
        self._subjects: dict[str, dict[int, SchemaStored]] = {}
        self._users: dict[str, dict[int, set[tuple[str, int]]]] = {}
        self._by_identity: dict[tuple[str, str], set[tuple[int, str, int]]] = {}
        self._highest: dict[str, int] = {}
        self._configs: dict[str, Mapping[str, Any]] = {}
        self._modes: dict[str, str] = {}
        self._referencing: dict[tuple[str, int], set[tuple[str, int]]] = {}

    def replay(self, event: Event) -> None:
        """Apply a record, in the order of the topic."""
        match event:
            case SchemaStored():
                self._forget(event.subject, event.version)
                self._remember(event)
            case SchemaErased():
                self._forget(event.subject, event.version)
            case SubjectDeleted():
                for version, stored in list(self._subjects.get(event.subject, {}).items()):
                    if version <= event.version and not stored.is_deleted:
                        self.replay(replace(stored, is_deleted=True))
            case ConfigSet():
                _set(self._configs, event.subject, event.values)
            case ModeSet():
                _set(self._modes, event.subject, event.mode or None)
            case IdsGiven():
                for context, number in event.ids.items():
                    self._highest[context] = max(self._highest.get(context, 0), number)

    def _remember(self, event: SchemaStored) -> None:
        context = parse_subject(event.subject).context
        self._subjects.setdefault(event.subject, {})[event.version] = event
        self._users.setdefault(context, {}).setdefault(event.id, set()).add((event.subject, event.version))
        if event.identity:
            same = self._by_identity.setdefault((context, event.identity), set())
            same.add((event.id, event.subject, event.version))
        self._highest[context] = max(self._highest.get(context, 0), event.id)
        for place in self._needed_by(event, context):
            self._referencing.setdefault(place, set()).add((event.subject, event.version))

    def _forget(self, subject: str, version: int) -> None:
        stored = self._subjects.get(subject, {}).pop(version, None)
        if stored is None:
            return
        if not self._subjects[subject]:
            del self._subjects[subject]
        context = parse_subject(subject).context
        users = self._users[context][stored.id]
        users.discard((subject, version))
        if not users:
            del self._users[context][stored.id]
        if stored.identity:
            same = self._by_identity[context, stored.identity]
            same.discard((stored.id, subject, version))
            if not same:
                del self._by_identity[context, stored.identity]
        for place in self._needed_by(stored, context):
            self._referencing[place].discard((subject, version))
            if not self._referencing[place]:
                del self._referencing[place]

    def _needed_by(self, stored: SchemaStored, context: str) -> set[tuple[str, int]]:
        """Return the versions that a schema references: each once, also where it has several names for one."""
        return {(self.qualified(reference, context), reference.version) for reference in stored.content.references}

    # --- Schemas ------------------------------------------------------------------------------------------------------

    @staticmethod
    def qualified(reference: Reference, context: str) -> str:
        """Return the subject of a reference: one without a context is in that of the schema that has it."""
        return str(parse_subject(reference.subject, context))

    def subjects(self, *, with_deleted: bool = False, only_deleted: bool = False) -> list[str]:
        """Return the names of all subjects, sorted.

        only_deleted: those of which nothing but deleted versions is left
        """
        found = []
        for name, versions in self._subjects.items():
            is_deleted = all(stored.is_deleted for stored in versions.values())
            if is_deleted if only_deleted else with_deleted or not is_deleted:
                found.append(name)
        return sorted(found)

    def versions(self, subject: str, *, with_deleted: bool = False) -> list[SchemaStored]:
        """Return the versions of a subject in their order; empty for none."""
        found = self._subjects.get(subject, {})
        return [found[version] for version in sorted(found) if with_deleted or not found[version].is_deleted]

    def version(self, subject: str, version: int) -> SchemaStored | None:
        """Return one version, also a deleted one; None where there is none."""
        return self._subjects.get(subject, {}).get(version)

    def users(self, context: str, schema_id: int) -> list[SchemaStored]:
        """Return all versions of subjects of a context that have this id, deleted ones too."""
        found = self._users.get(context, {}).get(schema_id, set())
        return [self._subjects[subject][version] for subject, version in sorted(found)]

    def content(self, context: str, schema_id: int) -> Content | None:
        """Return the schema that has an id in a context; None where there is none."""
        users = self.users(context, schema_id)
        return users[0].content if users else None

    def id_of(self, context: str, identity: str) -> int | None:
        """Return the id of a schema in a context, the lowest where it has several; None where it has none."""
        same = self._by_identity.get((context, identity))
        return min(same)[0] if same else None

    def highest_id(self, context: str) -> int:
        """Return the highest id that was ever given in a context; 0 for none."""
        return self._highest.get(context, 0)

    def highest_ids(self) -> dict[str, int]:
        """Return the highest id that was ever given, by context."""
        return dict(self._highest)

    def contexts(self) -> list[str]:
        """Return the names of all contexts with schemas, and the default one."""
        return sorted({DEFAULT_CONTEXT, *(parse_subject(name).context for name in self._subjects)})

    def referencing(self, subject: str, version: int) -> list[SchemaStored]:
        """Return the versions, without those that are deleted, whose schemas need this one."""
        places = sorted(self._referencing.get((subject, version), set()))
        found = [self._subjects[name][number] for name, number in places]
        return [stored for stored in found if not stored.is_deleted]

    def all_versions(self) -> Iterator[SchemaStored]:
        """Yield every version of every subject, deleted ones too, in the order of their names."""
        for name in sorted(self._subjects):
            yield from self.versions(name, with_deleted=True)

    # --- Settings -----------------------------------------------------------------------------------------------------

    def own_config(self, subject: str) -> Mapping[str, Any] | None:
        """Return the settings of a subject itself (empty name: the global ones); None where it has none."""
        return self._configs.get(subject)

    def setting(self, subject: str, name: str, default: Any) -> Any:
        """Return what holds for a subject: its own setting, that of its context, or the global one."""
        for place in _places(subject):
            values = self._configs.get(place)
            if values is not None and values.get(name) is not None:
                return values[name]
        return default

    def compatibility(self, subject: str) -> str:
        """Return the compatibility level that holds for a subject."""
        return str(self.setting(subject, "compatibilityLevel", BACKWARD))

    def own_mode(self, subject: str) -> str | None:
        """Return the mode of a subject itself (empty name: the global one); None where it has none."""
        return self._modes.get(subject)

    def mode(self, subject: str) -> str:
        """Return the mode that holds for a subject."""
        return next((self._modes[place] for place in _places(subject) if place in self._modes), READWRITE)


def _places(subject: str) -> tuple[str, ...]:
    context = parse_subject(subject).context
    return (subject, f":{context}:", "") if context != DEFAULT_CONTEXT else (subject, "")


def _set(mapping: dict[str, Any], key: str, value: Any) -> None:
    if value is None:
        mapping.pop(key, None)
    else:
        mapping[key] = value
