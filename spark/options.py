"""Options of a query as Spark hands them over: text under names of any case. Parsed, checked, and never shown whole."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from semel.protocol.errors import UsageError
from semel.protocol.ids import TopicPartition
from semel.protocol.int_bounds import INT64_MAX
from semel.sdk.transport.options import Bootstrap, nearest, parse_bootstrap
from semel.sdk.transport.security import is_security_name, taken_from

T = TypeVar("T")

_log = logging.getLogger("semel.spark")


KAFKA: Final = "kafka."
BOOTSTRAP: Final = "bootstrap"
KAFKA_BOOTSTRAP: Final = "kafka.bootstrap.servers"

_SECRET: Final = re.compile(r"password|secret|jaas|token|credential|keystore\.key|private", re.IGNORECASE)
_REDACTED: Final = "*(redacted)"
_USER_INFO: Final = re.compile(r"(?<=://)(?:[^/\s@]*|[^/\s@:]*:(?!\d+/)[^\s@]*)@")
"""Who logs in where, in a URI. A secret key may hold slashes; a port does not begin one."""
_SECRET_PARAMETER: Final = re.compile(
    r"(?<=[?&])([^=&\s'\"]*(?:password|secret|token|credential|key|sig)[^=&\s'\"]*=)[^&\s'\"]+", re.IGNORECASE
)

SPARK_OWN: Final = frozenset(
    {"checkpointlocation", "queryname", "outputmode", "path", "mergeschema", "asyncprogresstrackingenabled"}
)
"""What Spark itself puts among the options of any source or sink. Lower case, as all names here are compared."""

_MS_PER_UNIT: Final = {
    "us": 0.001,
    "microsecond": 0.001,
    "ms": 1,
    "millisecond": 1,
    "s": 1_000,
    "sec": 1_000,
    "second": 1_000,
    "m": 60_000,
    "min": 60_000,
    "minute": 60_000,
    "h": 3_600_000,
    "hour": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
}


def redacted(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options fit for a log line or an error: values of what sounds like a secret are left out."""
    return {
        name: _REDACTED if _SECRET.search(name) else without_secrets(value) for name, value in sorted(options.items())
    }


def without_secrets(text: str) -> str:
    """Return a text fit for a log line or an error, without the users and passwords of URIs in it."""
    return _SECRET_PARAMETER.sub(rf"\g<1>{_REDACTED}", _USER_INFO.sub(f"{_REDACTED}@", text))


class OptionReader:
    """Reads options one by one; `finish` refuses those that nobody asked for, with the nearest right name.

    owner: "source" or "sink", for messages.
    refused: names below "kafka." that can't be given, with what to do in their place.
    """

    def __init__(
        self, owner: str, options: Mapping[str, str], known: Sequence[str], refused: Mapping[str, str]
    ) -> None:
        self._owner = owner
        self._values = {name.lower(): value for name, value in options.items()}
        self._names = {name.lower(): name for name in known}
        for name, advice in refused.items():
            if KAFKA + name in self._values:
                raise UsageError(f"option {KAFKA}{name} can't be given to the {owner}: {advice}")

    def has(self, name: str) -> bool:
        """Whether the option was given."""
        self._check_known(name)
        return name.lower() in self._values

    def text(self, name: str, default: str = "") -> str:
        """Return an option's text."""
        self._check_known(name)
        return self._values.get(name.lower(), default).strip()

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        """Return one of `choices`, compared without case."""
        value = self.text(name, default)
        found = next((choice for choice in choices if choice.lower() == value.lower()), None)
        if found is None:
            raise UsageError(f"option {name} is {value!r}; it can be {' or '.join(choices)}")
        return found

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false."""
        return self.choice(name, ("true", "false"), "true" if default else "false") == "true"

    def integer(self, name: str, default: int | None, minimum: int = 1, maximum: int = INT64_MAX) -> int | None:
        """Return a whole number, or `default` where it is not given."""
        if not self.has(name):
            return default
        text = self.text(name)
        try:
            value = int(text)
        except ValueError:
            raise UsageError(f"option {name} is {text!r}, which is no whole number") from None
        if not minimum <= value <= maximum:
            bounds = f"at least {minimum}" if maximum == INT64_MAX else f"from {minimum} to {maximum}"
            raise UsageError(f"option {name} is {value}; it must be {bounds}")
        return value

    def duration_ms(self, name: str, default_ms: int) -> int:
        """Return a duration in milliseconds: "15m", "30 seconds", "500ms"; a bare number is milliseconds."""
        if not self.has(name):
            return default_ms
        text = self.text(name)
        found = re.fullmatch(r"(\d+)\s*([a-z]*)", text.lower())
        unit = found[2] or "ms" if found else ""
        factor = _MS_PER_UNIT.get(unit, _MS_PER_UNIT.get(unit.rstrip("s"))) if found else None
        if found is None or factor is None:
            raise UsageError(f"option {name} is {text!r}; give a duration such as '15m', '30s' or '500ms'")
        return round(int(found[1]) * factor)

    def parsed(self, name: str, parse: Callable[[str, str], T]) -> T | None:
        """Return what `parse(name, text)` makes of an option, None where it is not given."""
        return parse(name, self.text(name)) if self.has(name) else None

    def bootstrap(self) -> Bootstrap:
        """Return where the cluster is by `bootstrap`, else by `kafka.bootstrap.servers`, and how it is reached by the
        options of Kafka's clients for TLS and users. Addresses are of either listener of a node.
        """
        security = {name.removeprefix(KAFKA): text for name, text in self._values.items() if is_security(name)}
        for name in (BOOTSTRAP, KAFKA_BOOTSTRAP):
            text = self.text(name)
            if _split(text):
                try:
                    found = parse_bootstrap(text, is_all=not security)
                except UsageError as error:
                    raise UsageError(f"option {name}: {error.message}") from None
                return Bootstrap(found.addresses, taken_from(f"the {self._owner}", security, found.security))
        raise UsageError(
            f"the {self._owner} needs the address of a node, its Kafka port or its gRPC port: option {KAFKA_BOOTSTRAP} "
            f"(localhost:9092), or option {BOOTSTRAP}, which says the same"
        )

    def finish(self) -> None:
        """Refuse unknown options. What begins with "kafka." is a client's own setting; without use, it is logged."""
        for name in sorted(self._values):
            if name in self._names or name in SPARK_OWN or is_security(name):
                continue
            if name.startswith(KAFKA):
                _log.warning("option %s has no counterpart in Semel's client and changes nothing", name)
                continue
            advice = nearest(name, sorted(self._names)).replace("it has:", "the options are:")
            for lower, right in self._names.items():
                advice = advice.replace(f"'{lower}'", f"'{right}'")
            raise UsageError(f"the {self._owner} has no option {name!r}; {advice}")

    def _check_known(self, name: str) -> None:
        assert name.lower() in self._names or name.lower() in SPARK_OWN, name


def is_security(name: str) -> bool:
    """Return whether an option, in lower case, is about encryption or users."""
    return name.startswith(KAFKA) and is_security_name(name.removeprefix(KAFKA))


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def partition_numbers(name: str, text: str) -> dict[str, list[int]]:
    """Parse {"topic": [0, 1]}."""
    shape = '{"topic": [0, 1]}'
    value = _json(name, text, shape)
    result = {}
    for topic, numbers in value.items():
        if not isinstance(numbers, list) or not all(_is_int(number) and number >= 0 for number in numbers):
            raise UsageError(
                f"option {name}: the partitions of topic {topic!r} must be a list of numbers, as in {shape}"
            )
        result[topic] = sorted(set(numbers))
    return result


def partition_values(name: str, text: str) -> dict[TopicPartition, int]:
    """Parse {"topic": {"0": 23}}."""
    return offsets_from_json(_json(name, text, '{"topic": {"0": 23, "1": -2}}'), f"option {name}")


def offsets_from_json(value: Mapping[str, Any], what: str) -> dict[TopicPartition, int]:
    """Return the numbers of partitions from Kafka's shape, {"topic": {"0": 23}}. `what` names it in errors."""
    result = {}
    for topic, partitions in value.items():
        if not isinstance(partitions, dict):
            raise UsageError(
                f'{what}: topic {topic!r} must have an object of partitions, as in {{"topic": {{"0": 23}}}}'
            )
        for partition, number in partitions.items():
            if not str(partition).isdecimal() or not _is_int(number):
                raise UsageError(
                    f"{what}: partition {partition!r} of topic {topic!r} with {number!r} is no partition number with a "
                    'whole number, as in {"topic": {"0": 23}}'
                )
            result[TopicPartition(topic, int(partition))] = number
    return result


def offsets_to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return Kafka's shape of offsets. In order, because Spark compares it as text."""
    result: dict[str, dict[str, int]] = {}
    for tp in sorted(offsets):
        result.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    return result


def millis(name: str, text: str) -> int:
    """Parse a timestamp in milliseconds since 1970."""
    if not text.isdecimal() or int(text) > INT64_MAX:
        raise UsageError(f"option {name} is {text!r}; give milliseconds since 1970, such as '1700000000000'")
    return int(text)


def one_of(names: Iterable[str]) -> str:
    """Return names as a choice in a sentence."""
    *most, last = names
    return f"{', '.join(most)} or {last}"


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _json(name: str, text: str, shape: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"option {name} is no JSON ({error}); give {shape}") from None
    if not isinstance(value, dict) or not value:
        raise UsageError(f"option {name} must be a JSON object such as {shape}")
    return value
