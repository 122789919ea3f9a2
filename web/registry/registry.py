"""What the registry does, whichever way it is asked: register, look up, delete, compare, configure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from semel.web.gateway import Caller, Gateway
from semel.web.problems import Problem
from semel.web.registry import errors
from semel.web.registry.log import SchemaLog
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
from semel.web.registry.schemas import LEVELS, Schemas, Understood, checked_content
from semel.web.registry.state import BACKWARD, READWRITE, RegistryState
from semel.web.registry.subjects import Subject, is_valid, parse_subject

IMPORT: Final = "IMPORT"
READONLY: Final = "READONLY"
MODES: Final = (READWRITE, READONLY, IMPORT)
_INT32_MAX: Final = (1 << 31) - 1
_IMPORTED_MAX: Final = 2_000_000_000


@dataclass(frozen=True, slots=True)
class NewSchema:
    """A schema to be registered. id, version: where the caller says which, which needs the mode IMPORT; 0: the next."""

    content: Content
    id: int = 0
    version: int = 0


class Registry:
    """One registry. Reads are answered from memory; what is changed is in memory when a call returns."""

    def __init__(self, gateway: Gateway) -> None:
        self.state = RegistryState()
        self.schemas = Schemas(self.state)
        self._log = SchemaLog(gateway, self.state.replay, self.state.clear)

    async def ready(self) -> None:
        """Have everything read that was written before, the first time."""
        await self._log.ready()

    async def found(self, look: Callable[[], Any], missing: Callable[[], Problem]) -> Any:
        """Return what `look` finds, if need be after reading what other gateways have written. Raises `missing()`."""
        found = look()
        if found is None:
            await self._log.refresh()
            found = look()
        if found is None:
            raise missing()
        return found

    # --- Looking up ---------------------------------------------------------------------------------------------------

    async def version(self, subject: Subject, version: str, *, with_deleted: bool = False) -> SchemaStored:
        """Return a version of a subject: a number as text, "latest" or "-1". Raises `Problem` 42202, 40401, 40402."""
        number = parse_version(version)
        name = str(subject)

        def look() -> SchemaStored | None:
            versions = self.state.versions(name, with_deleted=with_deleted)
            if number is None:
                return versions[-1] if versions else None
            return next((stored for stored in versions if stored.version == number), None)

        def missing() -> Problem:
            if not self.state.versions(name, with_deleted=with_deleted):
                return errors.subject_not_found(name)
            return errors.version_not_found(version)

        found: SchemaStored = await self.found(look, missing)
        return found

    async def versions(
        self, subject: Subject, *, with_deleted: bool = False, only_deleted: bool = False
    ) -> list[SchemaStored]:
        """Return the versions of a subject. Raises `Problem` 40401."""

        def look() -> list[SchemaStored] | None:
            versions = self.state.versions(str(subject), with_deleted=with_deleted or only_deleted)
            return [stored for stored in versions if stored.is_deleted or not only_deleted] or None

        found: list[SchemaStored] = await self.found(look, lambda: errors.subject_not_found(str(subject)))
        return found

    async def by_id(
        self, schema_id: int, subject: Subject | None, context: str
    ) -> tuple[SchemaStored, list[SchemaStored]]:
        """Return a schema by its id: the version to show, and all versions that have it. Raises `Problem` 40403.

        subject: in whose context to look, and which to show; one without a context that has it nowhere is looked for in
                 all contexts, as the original does
        """

        def look() -> tuple[SchemaStored, list[SchemaStored]] | None:
            first = context if subject is None else subject.context
            places = [first] if subject is None else [first, *self.state.contexts()]
            for place in places:
                users = self.state.users(place, schema_id)
                named = [stored for stored in users if subject and parse_subject(stored.subject).name == subject.name]
                if users and (place == first or named):
                    return (named or users)[0], users
            return None

        found: tuple[SchemaStored, list[SchemaStored]] = await self.found(
            look, lambda: errors.schema_not_found(schema_id)
        )
        return found

    async def lookup(self, subject: Subject, content: Content, *, normalize: bool, with_deleted: bool) -> SchemaStored:
        """Return under which version a schema is registered. Raises `Problem` 40401, 40403, 42201."""
        name = str(subject)
        await self.versions(subject, with_deleted=with_deleted)
        understood = await self._understood(subject, content, normalize=normalize)
        for _ in range(2):
            found = await self._same(name, understood, with_deleted=with_deleted)
            if found is not None:
                return found
            await self._log.refresh()
        raise errors.schema_not_found()

    async def _same(self, name: str, new: Understood, *, with_deleted: bool = False) -> SchemaStored | None:
        """Return the newest version of a subject that is this schema."""
        for stored in reversed(self.state.versions(name, with_deleted=with_deleted)):
            if stored.content == new.content or await self.schemas.identity(stored) == new.identity:
                return stored
        return None

    async def _understood(self, subject: Subject, content: Content, *, normalize: bool) -> Understood:
        checked_content(content)
        normalize = normalize or bool(self.state.setting(str(subject), "normalize", False))
        references = tuple(self._pinned(each, subject.context) for each in content.references)
        return await self.schemas.understand(
            replace(content, references=references), subject.context, normalize=normalize
        )

    def _pinned(self, reference: Reference, context: str) -> Reference:
        """Return a reference to the latest version, -1, as one to that version: a schema does not change later."""
        versions = self.state.versions(self.state.qualified(reference, context)) if reference.version == -1 else ()
        return reference._replace(version=versions[-1].version) if versions else reference

    # --- Registering --------------------------------------------------------------------------------------------------

    async def register(self, subject: Subject, new: NewSchema, caller: Caller, *, normalize: bool) -> SchemaStored:
        """Register a schema under a subject, and return its version. One that is there already is returned as it is.

        Raises `Problem` 42201, 42205, 42208, 409.
        """
        if not is_valid(subject):
            raise errors.invalid_subject(str(subject))
        await self._log.ready()
        name = str(subject)
        if not new.id and not new.version and self.state.mode(name) != IMPORT:
            understood = await self._understood(subject, new.content, normalize=normalize)
            found = await self._same(name, understood)
            if found is not None:
                return found
        registered: list[SchemaStored] = []

        async def decide() -> Sequence[Event]:
            registered.clear()
            stored, is_new = await self._decide(subject, new, normalize=normalize)
            registered.append(stored)
            return [stored] if is_new else []

        await self._log.change(caller, decide)
        return registered[0]

    async def _decide(self, subject: Subject, new: NewSchema, *, normalize: bool) -> tuple[SchemaStored, bool]:
        name, state = str(subject), self.state
        mode = state.mode(name)
        self._check_writable(name)
        if (new.id or new.version) and mode != IMPORT:
            raise errors.not_permitted(
                f"Subject {name} is not in import mode, which an id or a version of one's own needs"
            )
        understood = await self._understood(subject, new.content, normalize=normalize)
        found = await self._same(name, understood)
        if found is not None and new.id in (0, found.id) and new.version in (0, found.version):
            return found, False
        if mode != IMPORT:
            level = state.compatibility(name)
            why = await self.schemas.incompatible(understood, subject.context, state.versions(name), level)
            if why:
                raise errors.incompatible(name, why)
        version = new.version or self._next_version(name)
        if state.version(name, version) is not None and new.version:
            raise errors.not_permitted(f"Version {version} of subject {name} exists already")
        stored = SchemaStored(name, version, self._id(subject, new, understood), understood.content)
        return replace(stored, identity=understood.identity), True

    def _id(self, subject: Subject, new: NewSchema, understood: Understood) -> int:
        """Return the id that a schema gets: what it has in another subject of the context, or the next one."""
        known = self.state.id_of(subject.context, understood.identity)
        if not new.id:
            found = known or self.state.highest_id(subject.context) + 1
            if found > _INT32_MAX:
                raise errors.not_permitted(f"The context {subject.context} has no ids left")
            return found
        if new.id > _IMPORTED_MAX:
            raise errors.not_permitted(
                f"An imported id is at most {_IMPORTED_MAX}: new schemas get ids above it, and need enough of them"
            )
        other = self.state.content(subject.context, new.id)
        if other is not None and other != understood.content and known != new.id:
            raise errors.not_permitted(f"Overwrite new schema with id {new.id} is not permitted.")
        return new.id

    def _next_version(self, name: str) -> int:
        versions = self.state.versions(name, with_deleted=True)
        return versions[-1].version + 1 if versions else 1

    def _check_writable(self, name: str) -> None:
        if self.state.mode(name) == READONLY:
            raise errors.not_permitted(f"Subject {name} is in read-only mode")

    async def compatible(
        self, subject: Subject, content: Content, version: str | None, *, normalize: bool
    ) -> list[str]:
        """Return why a schema is not compatible with a version of a subject; empty where it is. Registers nothing.

        version: a number as text or "latest"; None: with all that the subject's level asks for
        Raises `Problem` 40401, 40402, 42201, 42202.
        """
        name = str(subject)
        level = self.state.compatibility(name)
        understood = await self._understood(subject, content, normalize=normalize)
        if version is None:
            stored = self.state.versions(name)
        else:
            if parse_version(version) is None and not self.state.versions(name):
                return []
            stored = [await self.version(subject, version)]
        return await self.schemas.incompatible(understood, subject.context, stored, level)

    # --- Deleting -----------------------------------------------------------------------------------------------------

    async def delete_subject(self, subject: Subject, caller: Caller, *, is_permanent: bool) -> list[int]:
        """Delete a subject and return its versions. is_permanent: for good, after it was deleted without that.

        Raises `Problem` 40401, 40404, 40405, 42205, 42206.
        """
        name = str(subject)
        deleted: list[int] = []

        async def decide() -> Sequence[Event]:
            self._check_writable(name)
            every, alive = self.state.versions(name, with_deleted=True), self.state.versions(name)
            if not every:
                raise errors.subject_not_found(name)
            if is_permanent and alive:
                raise errors.subject_not_soft_deleted(name)
            if not is_permanent and not alive:
                raise errors.subject_soft_deleted(name)
            affected = every if is_permanent else alive
            for stored in affected:
                self._check_unreferenced(stored, name)
            deleted[:] = [stored.version for stored in affected]
            if is_permanent:
                return [self._ids_given(), *(SchemaErased(name, stored.version) for stored in affected)]
            return [SubjectDeleted(name, affected[-1].version)]

        await self._log.change(caller, decide)
        return deleted

    async def delete_version(self, subject: Subject, version: str, caller: Caller, *, is_permanent: bool) -> int:
        """Delete one version and return its number. See `delete_subject`. Raises `Problem` 40402, 40406, 40407, too."""
        name, number = str(subject), parse_version(version)
        deleted: list[int] = []

        async def decide() -> Sequence[Event]:
            self._check_writable(name)
            every = self.state.versions(name, with_deleted=True)
            if not every:
                raise errors.subject_not_found(name)
            alive = [stored for stored in every if not stored.is_deleted]
            last = (every if is_permanent else alive)[-1:]
            stored = self.state.version(name, number) if number is not None else last[0] if last else None
            if stored is None:
                raise errors.version_not_found(version)
            if is_permanent and not stored.is_deleted:
                raise errors.version_not_soft_deleted(name, stored.version)
            if not is_permanent and stored.is_deleted:
                raise errors.version_soft_deleted(name, stored.version)
            self._check_unreferenced(stored)
            deleted[:] = [stored.version]
            if is_permanent:
                return [self._ids_given(), SchemaErased(name, stored.version)]
            return [replace(stored, is_deleted=True)]

        await self._log.change(caller, decide)
        return deleted[0]

    def _check_unreferenced(self, stored: SchemaStored, within: str = "") -> None:
        users = self.state.referencing(stored.subject, stored.version)
        if any(user.subject != within for user in users):
            raise errors.referenced(stored.subject, stored.version)

    def _ids_given(self) -> IdsGiven:
        """The ids of what is deleted for good are never given again: clients may have kept what they stood for."""
        return IdsGiven(self.state.highest_ids())

    # --- Settings -----------------------------------------------------------------------------------------------------

    async def set_config(self, name: str, values: Mapping[str, Any], caller: Caller) -> Mapping[str, Any]:
        """Change settings of a subject (empty: all) and return all that it has then.

        values: "compatibilityLevel", one of `LEVELS`, and "normalize". Raises `Problem` 42203, 42205.
        """
        level = values.get("compatibilityLevel")
        if level is not None and level not in LEVELS:
            raise errors.invalid_level(level)
        stored: dict[str, Any] = {}

        async def decide() -> Sequence[Event]:
            self._check_writable(name)
            stored.clear()
            stored.update({**(self.state.own_config(name) or {}), **values})
            return [ConfigSet(name, dict(stored))] if stored != self.state.own_config(name) else []

        await self._log.change(caller, decide)
        return stored

    async def delete_config(self, name: str, caller: Caller) -> Mapping[str, Any]:
        """Take back the settings of a subject (empty: the global ones) and return them. Raises `Problem` 40408."""
        before: dict[str, Any] = {}

        async def decide() -> Sequence[Event]:
            self._check_writable(name)
            own = self.state.own_config(name)
            if own is None and name:
                raise errors.no_own_compatibility(name)
            before.clear()
            before.update(own or {"compatibilityLevel": BACKWARD})
            return [] if own is None else [ConfigSet(name, None)]

        await self._log.change(caller, decide)
        return before

    async def set_mode(self, name: str, mode: str, caller: Caller, *, is_forced: bool) -> None:
        """Set what may be done with a subject (empty: all). is_forced: IMPORT also where there are schemas.

        Raises `Problem` 42204, 42205.
        """
        if mode not in MODES:
            raise errors.invalid_mode(mode)

        async def decide() -> Sequence[Event]:
            if mode == IMPORT and not is_forced and self.state.mode(name) != IMPORT and self._has_schemas(name):
                raise errors.not_permitted("Cannot import since found existing subjects")
            return [] if self.state.own_mode(name) == mode else [ModeSet(name, mode)]

        await self._log.change(caller, decide)

    async def delete_mode(self, name: str, caller: Caller) -> str:
        """Take back the mode of a subject and return it. Raises `Problem` 40409."""
        before: list[str] = []

        async def decide() -> Sequence[Event]:
            own = self.state.own_mode(name)
            if own is None and name:
                raise errors.no_own_mode(name)
            before[:] = [own or READWRITE]
            return [] if own is None else [ModeSet(name, "")]

        await self._log.change(caller, decide)
        return before[0]

    def _has_schemas(self, name: str) -> bool:
        """Say whether a mode of this name is for any schema: a subject's, a context's, or all."""
        subject = parse_subject(name)
        if subject.name:
            return bool(self.state.versions(name))
        every = self.state.subjects()
        return any(not name or parse_subject(each).context == subject.context for each in every)


def parse_version(text: str) -> int | None:
    """Return the number of a version; None for the latest. Raises `Problem` 42202.

    >>> parse_version("3"), parse_version("latest"), parse_version("-1")
    (3, None, None)
    """
    if text in ("latest", "-1"):
        return None
    if len(text) > 10 or not text.isascii() or not text.isdecimal() or not 0 < int(text) <= _INT32_MAX:
        raise errors.invalid_version(text[:100])
    return int(text)
