"""Concatenated JSON: objects one behind the other, as they arrive. Each is read once it is whole."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import Any

from semel.web.rest.bodies import json_object
from semel.web.rest.bounds import JSON_DEPTH_MAX
from semel.web.rest.errors import bad_request

_SPACE = " \t\r\n"


class JsonStream:
    """Cuts a stream of bytes into JSON objects. What is not whole yet is kept: the body's limit bounds it.

    >>> stream = JsonStream()
    >>> list(stream.fed(b'{"a": 1}{"b"'))
    [{'a': 1}]
    >>> list(stream.fed(b': 2}'))
    [{'b': 2}]
    >>> stream.end()
    """

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")()
        self._parts: list[str] = []
        self._depth = 0
        self._in_text = False
        self._escaped = False

    def fed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Yield the objects that are whole with these bytes. Raises `Problem` 400 where they are no JSON objects."""
        try:
            text = self._decode.decode(data)
        except UnicodeDecodeError:
            raise bad_request("the body is not UTF-8") from None
        begin = 0
        for place, character in enumerate(text):
            if self._in_text:
                self._in_text = self._escaped or character != '"'
                self._escaped = not self._escaped and character == "\\"
            elif character == '"' and self._depth:
                self._in_text = True
            elif character in "{[" and (self._depth or character == "{"):
                self._depth += 1
                if self._depth > JSON_DEPTH_MAX:
                    raise bad_request(f"an object is nested more than {JSON_DEPTH_MAX} deep")
            elif not self._depth:
                if character not in _SPACE:
                    raise bad_request(f"between objects there is white space alone, not {character!r}")
                begin = place + 1
            elif character in "}]":
                self._depth -= 1
                if not self._depth:
                    whole = "".join((*self._parts, text[begin : place + 1]))
                    self._parts.clear()
                    begin = place + 1
                    yield json_object(whole)
        if begin < len(text):
            self._parts.append(text[begin:])

    def end(self) -> None:
        """Raise `Problem` 400 where the stream ends inside an object."""
        if self._depth or self._parts:
            raise bad_request("the body ends inside a JSON object")
