"""Makes reStructuredText of docstrings as this project writes them: paragraphs, lists of options, examples.

    name:  what it is
    other: what that is, and where it is long
           it continues below

is a list of options; what is indented as a whole is an example; `this` is code, and everything else is plain text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from textwrap import dedent
from typing import Any

OPTION = re.compile(r"([A-Za-z_]\w*(?:, [A-Za-z_]\w*)*): +(\S.*)")
CODE = re.compile(r"(``.+?``|`[^`]+`)")


def as_rst(lines: list[str]) -> list[str]:
    """Return a docstring's lines as reStructuredText."""
    made: list[str] = []
    for paragraph in _paragraphs(lines):
        made += [*_block(paragraph), ""]
    return made


def _paragraphs(lines: list[str]) -> Iterator[list[str]]:
    for has_text, found in groupby(lines, key=lambda line: bool(line.strip())):
        if has_text:
            yield list(found)


def _block(paragraph: list[str]) -> list[str]:
    if paragraph[0].startswith(">>>"):
        return paragraph
    if paragraph[0].startswith(" "):
        return ["::", "", *("    " + line for line in dedent("\n".join(paragraph)).split("\n"))]
    if OPTION.fullmatch(paragraph[0]) and all(OPTION.fullmatch(line) or line[0] == " " for line in paragraph):
        return list(_options(paragraph))
    if all(line.startswith(("- ", "  ")) for line in paragraph):
        return [_escaped(line) for line in paragraph]
    return [_escaped(" ".join(line.strip() for line in paragraph))]


def _options(paragraph: list[str]) -> Iterator[str]:
    """Names with what they mean below them."""
    text = ""
    for line in paragraph:
        option = OPTION.fullmatch(line)
        if option is None:
            text += " " + line.strip()
            continue
        if text:
            yield "    " + _escaped(text)
        yield ", ".join(f"``{name}``" for name in option[1].split(", "))
        text = option[2]
    yield "    " + _escaped(text)


def _escaped(text: str) -> str:
    """Return plain text with what reStructuredText would take for markup taken back, code left alone."""
    parts = CODE.split(text)
    plain = (re.sub(r"([*|\\]|(?<=\w)_(?!\w))", r"\\\1", part) for part in parts[::2])
    code = (f"``{part.strip('`')}``" for part in parts[1::2])
    woven = [""] * len(parts)
    woven[::2] = plain
    woven[1::2] = code
    return _joined(woven)


def _joined(parts: list[str]) -> str:
    """Join text and code. Code beside a letter ("`Consumer`s") would not be code for reStructuredText."""
    text = ""
    for part in parts:
        touches = (text.endswith("``") and part[:1].isalnum()) or (part.startswith("``") and text[-1:].isalnum())
        text += ("\\ " if touches else "") + part
    return text


def _process(app: Any, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    lines[:] = as_rst(lines)


def setup(app: Any) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", _process)
    return {"parallel_read_safe": True}
