"""Names of subjects: a context and a name in it, `:.context:name`; without a context, the default one."""

from __future__ import annotations

from typing import Final, NamedTuple

DEFAULT_CONTEXT: Final = "."
EVERYTHING: Final = ":*:"
"""The prefix that stands for all subjects of all contexts."""
NAME_CHARACTERS_MAX: Final = 1_000


class Subject(NamedTuple):
    """A subject. context: with its dot; name: empty where the context as a whole is meant."""

    context: str
    name: str

    def __str__(self) -> str:
        return self.name if self.context == DEFAULT_CONTEXT else f":{self.context}:{self.name}"


def parse_subject(text: str, context: str = DEFAULT_CONTEXT) -> Subject:
    """Return the subject that a text names.

    context: where names without one are

    >>> parse_subject(":.eu:orders-value"), parse_subject("orders-value"), str(parse_subject(":.:orders"))
    (Subject(context='.eu', name='orders-value'), Subject(context='.', name='orders-value'), 'orders')
    """
    if text.startswith(":."):
        found, colon, name = text[1:].partition(":")
        if colon:
            return Subject(found, name)
        return Subject(found, "")
    return Subject(context, text)


def is_valid(subject: Subject) -> bool:
    """Say whether a schema can be registered under this name."""
    text = f"{subject.context}{subject.name}"
    return 0 < len(subject.name) <= NAME_CHARACTERS_MAX and len(text) <= NAME_CHARACTERS_MAX and text.isprintable()
