"""The client of a schema registry that both APIs stand on. It blocks: `aio.py` calls it in threads."""

from __future__ import annotations

import http.client
import json
import threading
import time
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from semel.protocol.errors import RetriableError, UsageError
from semel.protocol.loopback import is_loopback
from semel.runtime.backoff import Backoff
from semel.runtime.bounded_http import Answer, ask
from semel.sdk.schemas.errors import SchemaRegistryError
from semel.sdk.schemas.model import RegisteredSchema, Schema

CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_ANSWER_BYTES_MAX: Final = 16 << 20
_CACHED_MAX: Final = 1_000
"""How many schemas a client keeps of each kind of question."""
_BACKOFF: Final = Backoff(50, 2_000)
_TRY_AGAIN: Final = frozenset({408, 429, 500, 502, 503, 504})


class RegistryCore:
    """Asks a registry, and remembers what never changes: what an id stands for. From any thread."""

    def __init__(
        self, url: str | Sequence[str], username: str, password: str, ca_location: str, timeout_s: float
    ) -> None:
        given = list(url) if isinstance(url, Sequence) and not isinstance(url, str) else [url]
        if not given:
            raise _no_url()
        self._urls = [_checked_url(each, password) for each in given]
        if bool(username) != bool(password):
            raise UsageError("username and password go together")
        if not 0 < timeout_s <= 600:
            raise UsageError(f"option timeout_s must be between 0 and 600, not {timeout_s}")
        told = b64encode(f"{username}:{password}".encode()).decode() if username else ""
        self._headers = {"Accept": CONTENT_TYPE, **({"Authorization": f"Basic {told}"} if told else {})}
        self._ca_location = ca_location
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._cached: OrderedDict[Hashable, Any] = OrderedDict()

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(self._urls)

    # --- Calls --------------------------------------------------------------------------------------------------------

    def subjects(self, prefix: str, with_deleted: bool) -> list[str]:
        query = {**({"subjectPrefix": prefix} if prefix else {}), **_flag("deleted", with_deleted)}
        return [str(name) for name in self._ask("GET", ("subjects",), query)]

    def versions(self, subject: str, with_deleted: bool) -> list[int]:
        found = self._ask("GET", ("subjects", subject, "versions"), _flag("deleted", with_deleted))
        return [int(version) for version in found]

    def version(self, subject: str, version: int | str, format: str = "") -> RegisteredSchema:  # noqa: A002
        query = {"format": format} if format else {}
        return _registered(self._ask("GET", ("subjects", subject, "versions", str(version)), query))

    def schema(self, schema_id: int, format: str = "") -> Schema:  # noqa: A002
        key = ("id", schema_id, format)
        found = self._known(key)
        if found is None:
            query = {"format": format} if format else {}
            found = _understood(Schema.of_body, self._ask("GET", ("schemas", "ids", str(schema_id)), query))
            self._keep(key, found)
        schema: Schema = found
        return schema

    def fixed_version(self, subject: str, version: int, format: str = "") -> RegisteredSchema:  # noqa: A002
        """Return a version that has a number, which never changes: from memory, where it was asked for before."""
        key = ("version", subject, version, format)
        found: RegisteredSchema | None = self._known(key)
        if found is None:
            found = self.version(subject, version, format)
            self._keep(key, found)
        return found

    def register(self, subject: str, schema: Schema, normalize: bool) -> int:
        key = ("register", subject, schema, normalize)
        found: int | None = self._known(key)
        if found is None:
            body = self._ask("POST", ("subjects", subject, "versions"), _flag("normalize", normalize), schema.body())
            found = _understood(lambda given: int(given["id"]), body)
            self._keep(key, found)
        return found

    def lookup(self, subject: str, schema: Schema, normalize: bool) -> RegisteredSchema:
        return _registered(self._ask("POST", ("subjects", subject), _flag("normalize", normalize), schema.body()))

    def check(self, subject: str, schema: Schema, version: int | str | None) -> list[str]:
        path = ("compatibility", "subjects", subject, "versions", *(() if version is None else (str(version),)))
        body = self._ask("POST", path, {"verbose": "true"}, schema.body())
        if body.get("is_compatible"):
            return []
        return [str(message) for message in body.get("messages") or ["it is not compatible"]]

    def delete_subject(self, subject: str, permanent: bool) -> list[int]:
        self._forget()
        return [int(each) for each in self._ask("DELETE", ("subjects", subject), _flag("permanent", permanent))]

    def delete_version(self, subject: str, version: int | str, permanent: bool) -> int:
        self._forget()
        path = ("subjects", subject, "versions", str(version))
        return int(self._ask("DELETE", path, _flag("permanent", permanent)))

    def compatibility(self, subject: str | None) -> str:
        path = ("config",) if subject is None else ("config", subject)
        return str(self._ask("GET", path, {"defaultToGlobal": "true"})["compatibilityLevel"])

    def set_compatibility(self, level: str, subject: str | None) -> None:
        self._ask("PUT", ("config",) if subject is None else ("config", subject), {}, {"compatibility": level})

    # --- What is remembered -------------------------------------------------------------------------------------------

    def _known(self, key: Hashable) -> Any:
        with self._lock:
            found = self._cached.get(key)
            if found is not None:
                self._cached.move_to_end(key)
            return found

    def _keep(self, key: Hashable, value: object) -> None:
        with self._lock:
            self._cached[key] = value
            while len(self._cached) > _CACHED_MAX:
                self._cached.popitem(last=False)

    def _forget(self) -> None:
        with self._lock:
            self._cached.clear()

    # --- HTTP ---------------------------------------------------------------------------------------------------------

    def _ask(self, method: str, path: Sequence[str], query: Mapping[str, str], body: object = None) -> Any:
        """Return the JSON of an answer. All requests may be repeated: the registry does once what is asked twice."""
        ends = time.monotonic() + self._timeout_s
        failures = 0
        while True:
            url = self._urls[failures % len(self._urls)]
            try:
                answer = self._ask_once(url, method, path, query, body, max(ends - time.monotonic(), 0.1))
                if answer.status not in _TRY_AGAIN:
                    return _answered(url, answer)
                why = _refused(url, answer).message
            except (OSError, ValueError, http.client.HTTPException) as error:
                why = f"{url}: {error or type(error).__name__}"
            failures += 1
            pause_s = _BACKOFF.jittered_s(failures)
            if time.monotonic() + pause_s >= ends:
                raise RetriableError(f"the schema registry does not answer, {failures} times: {why}")
            time.sleep(pause_s)

    def _ask_once(
        self, url: str, method: str, path: Sequence[str], query: Mapping[str, str], body: object, timeout_s: float
    ) -> Answer:
        whole = "/".join([url, *(quote(part, safe="") for part in path)])
        return ask(
            f"{whole}?{urlencode(query)}" if query else whole,
            method=method,
            headers={**self._headers, **({} if body is None else {"Content-Type": CONTENT_TYPE})},
            body=None if body is None else json.dumps(body).encode(),
            timeout_s=timeout_s,
            bytes_max=_ANSWER_BYTES_MAX,
            ca_location=self._ca_location,
        )


def _checked_url(url: object, password: str) -> str:
    parts = urlsplit(url) if isinstance(url, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise _no_url()
    if parts.username or parts.password:
        raise UsageError("the url has a user in it: give username and password as options")
    if password and parts.scheme == "http" and not is_loopback(parts.hostname):
        raise UsageError(f"the password would cross the network in plain text: use https://{parts.netloc}")
    return parts.geturl().rstrip("/")


def _no_url() -> UsageError:
    return UsageError("url must be the address of a schema registry, such as http://localhost:8080")


def _flag(name: str, is_set: bool) -> dict[str, str]:
    return {name: "true"} if is_set else {}


def _answered(url: str, answer: Answer) -> Any:
    if not 200 <= answer.status < 300:
        raise _refused(url, answer)
    return _understood(json.loads, answer.body)


def _refused(url: str, answer: Answer) -> SchemaRegistryError:
    try:
        body = json.loads(answer.body)
        code, message = int(body["error_code"]), str(body["message"])
    except (ValueError, KeyError, TypeError):
        code, message = answer.status, f"{url} answers with the status {answer.status}, and is no schema registry"
    return SchemaRegistryError(message, answer.status, code)


def _registered(body: Any) -> RegisteredSchema:
    def read(given: Any) -> RegisteredSchema:
        return RegisteredSchema(given["subject"], int(given["version"]), int(given["id"]), Schema.of_body(given))

    found: RegisteredSchema = _understood(read, body)
    return found


def _understood(read: Any, given: Any) -> Any:
    try:
        return read(given)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SchemaRegistryError(f"the answer is not a schema registry's: {error!r}", 200, 200) from None
