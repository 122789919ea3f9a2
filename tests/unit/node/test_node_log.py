"""The node's own log: one line an event, without secrets."""

from __future__ import annotations

import io
import json
import logging

import pytest

from semel.broker.node_log import configure_logging, redact


def log_one(log_format: str) -> str:
    stream = io.StringIO()
    configure_logging(log_format, "info", stream)
    logger = logging.getLogger("semel.test")
    logger.debug("not shown")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logger.exception("at postgresql://user:secret@host/db\nand more")
    return stream.getvalue()


def test_text_is_one_line_an_event() -> None:
    text = log_one("text")
    assert text.count("\n") == 1
    assert text.endswith("\n")
    assert " ERROR   semel.test at postgresql://user:***@host/db\\nand more\\nTraceback" in text
    assert "ValueError: two\\nlines" in text
    assert "secret" not in text
    assert text[23] == "Z"


def test_json_is_one_object_an_event() -> None:
    text = log_one("json")
    event = json.loads(text)
    assert (event["level"], event["logger"]) == ("error", "semel.test")
    assert event["message"] == "at postgresql://user:***@host/db\nand more"
    assert "ValueError: two\nlines" in event["traceback"]
    assert text.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql+psycopg://u:p@h/d", "postgresql+psycopg://u:***@h/d"),
        ("x postgresql://u@h/d y", "x postgresql://u@h/d y"),
        ("http://h:9092/a@b", "http://h:9092/a@b"),
        ("127.0.0.1:9092", "127.0.0.1:9092"),
    ],
)
def test_only_passwords_are_taken_out(text: str, shown: str) -> None:
    assert redact(text) == shown
