"""Docstrings become reStructuredText that says the same: no star, bar or underscore of theirs is taken for markup."""

from __future__ import annotations

import inspect

import docutils.core
import docutils.frontend
import docutils.utils
import pytest
from docstrings import as_rst

import semel


def plain(docstring: str) -> str:
    """The text that a reader sees."""
    rst = "\n".join(as_rst(inspect.cleandoc(docstring).split("\n")))
    settings = {"report_level": 2, "halt_level": 2, "warning_stream": None}
    return docutils.core.publish_doctree(rst, settings_overrides=settings).astext()


def test_options_become_names_with_what_they_mean() -> None:
    made = as_rst(["a, b_c:  what it is, `code` among it", "         and more", "d:       the other"])
    assert made == ["``a``, ``b_c``", "    what it is, ``code`` among it and more", "``d``", "    the other", ""]


def test_an_example_is_kept_as_it_is() -> None:
    assert as_rst(["    with x as y:", "        y.z()"]) == ["::", "", "    with x as y:", "        y.z()", ""]
    assert as_rst([">>> 1 + 1", "2"]) == [">>> 1 + 1", "2", ""]


@pytest.mark.parametrize("text", ["Prepare* and **kwargs", "a_ and |b|", "one\\two", "`Consumer`s, x`y`"])
def test_what_looks_like_markup_is_text(text: str) -> None:
    assert plain(text) == text.replace("`", "")


@pytest.mark.parametrize("name", [name for name in semel.__all__ if name != "aio"])
def test_docstrings_of_public_names_can_be_read(name: str) -> None:
    assert plain(getattr(semel, name).__doc__)
