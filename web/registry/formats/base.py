"""What the registry needs of a language of schemas, and the bounds of what is parsed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

TEXT_BYTES_MAX: Final = 900_000
"""Of one schema: with its key and its references it must fit into one record."""
REFERENCES_MAX: Final = 200
"""How many other schemas one may need, those of its references among them."""
STEPS_MAX: Final = 20_000
"""How many pairs of parts are compared at most; two schemas that need more are refused."""
DIFFERENCES_MAX: Final = 100
"""How many differences are told at most, of all that there are between two schemas."""
_SAID_CHARACTERS_MAX: Final = 2_000


class InvalidSchemaError(Exception):
    """A text is no schema of its language. The message says what is wrong with it."""


class TooComplexError(InvalidSchemaError):
    """Two schemas have too many parts to be compared with each other."""


class Referenced(NamedTuple):
    """A schema that another one needs. name: as the other one calls it; references of its own come before it."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Difference:
    """Why data of the writer's schema can't be read with the reader's.

    kind: Confluent's and Apache's name, such as READER_FIELD_MISSING_DEFAULT_VALUE
    path: where in the reader's schema, with slashes
    what: a sentence
    """

    kind: str
    path: str
    what: str

    def __post_init__(self) -> None:
        """Names in schemas may be as long as a schema: what messages say of them is not."""
        for name in ("path", "what"):
            if len(getattr(self, name)) > _SAID_CHARACTERS_MAX:
                object.__setattr__(self, name, f"{getattr(self, name)[:_SAID_CHARACTERS_MAX]}...")


class Parsed(Protocol):
    """A schema that was understood.

    canonical:           the text that is stored
    normalized:          the same, also for schemas whose parts are in another order where the order means nothing
    identity:            equal for texts that are the same schema
    normalized_identity: equal for texts that are the same schema where the order of parts means nothing
    """

    @property
    def canonical(self) -> str: ...

    @property
    def normalized(self) -> str: ...

    @property
    def identity(self) -> bytes: ...

    @property
    def normalized_identity(self) -> bytes: ...


class TextParsed:
    """A schema whose canonical text is its identity."""

    canonical: str
    normalized: str

    @property
    def identity(self) -> bytes:
        return self.canonical.encode()

    @property
    def normalized_identity(self) -> bytes:
        return self.normalized.encode()


class Language(Protocol):
    """One language of schemas."""

    def parse(self, text: str, references: Sequence[Referenced]) -> Parsed:
        """Return the schema in `text`. Raises `InvalidSchemaError`."""

    def differences(self, reader: Parsed, writer: Parsed) -> list[Difference]:
        """Return why data of `writer` can't be read with `reader`; empty where it can. `DIFFERENCES_MAX` at most.

        Raises `TooComplexError`.
        """


class Steps:
    """Counts comparisons, so that two schemas can't keep the registry busy for long."""

    def __init__(self) -> None:
        self._left = STEPS_MAX

    def take(self, count: int = 1) -> None:
        """Count steps, 0 or more. Raises `TooComplexError`."""
        self._left -= count
        if self._left < 0:
            raise TooComplexError(f"the schemas can't be compared in {STEPS_MAX} steps: make them simpler")
