"""What a setting is: its type, bounds and words, how text becomes its value, and which name was probably meant.

Each part of a node declares its settings once, with `setting`, in its `PartConfig`; `broker/config/node_config.py`
collects them.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from semel.protocol.errors import ErrorCode, UsageError
from semel.protocol.int_bounds import INT32_MAX, INT64_MAX

Value: TypeAlias = str | int | float | bool | tuple[str, ...]

_VALUE_LENGTH_MAX: Final = 32_767
"""What a string of Kafka's protocol may have. A list of replicas that are moved needs much of it."""


class ConfigError(UsageError):
    """A setting is unknown or has a wrong value. The message names it, where it came from, and what would be right."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INVALID_CONFIG) -> None:
        super().__init__(message, code)


class ValueType(Enum):
    """Kafka's config types, by the names that DescribeConfigs uses."""

    STRING = "string"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    BOOLEAN = "boolean"
    LIST = "list"
    """Words separated by commas."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: the whole truth about it."""

    name: str
    """With dots. Kafka's name where Kafka has the setting."""
    type: ValueType
    default: Value
    documentation: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    dynamic: bool = False
    """Whether a running node takes a change (AlterConfigs)."""
    only_dynamic: bool = False
    """Whether it is changed in no other way, because the other nodes have to know."""
    sensitive: bool = False
    topic_name: str | None = None
    """The topic-level setting that this one is the node's default for."""
    at_most: str = ""
    """A setting of the same part that must not be less than this one."""
    section: str = ""

    @property
    def attribute(self) -> str:
        """The field of the config that holds the value."""
        return self.name.replace(".", "_")

    def check(self, value: Value) -> None:
        """Raise `ConfigError` for a value that can't work.

        Code may go below the minimum that operators have, as small logs of tests do, but not below one, or zero.
        """
        if isinstance(value, int | float):
            low = None if self.minimum is None else min(self.minimum, 1)
            if (low is not None and value < low) or (self.maximum is not None and value > self.maximum):
                raise ConfigError(f"{self.name} = {value} is out of range: {self.range_text()}")
        self._check_choices(value, value)

    def _check_choices(self, value: Value, text: object) -> None:
        if self.choices:
            for word in value if isinstance(value, tuple) else (value,):
                if word not in self.choices:
                    hint = did_you_mean(str(word), self.choices)
                    known = " or ".join(one or "nothing" for one in self.choices)
                    raise ConfigError(f"{self.name} = {text} is not known: use {known}{hint}")

    def parse(self, text: object) -> Value:
        """Return the value that `text` (or a TOML value) stands for. Raises `ConfigError` that says what is right."""
        value = self._convert(text)
        if isinstance(value, int | float) and not isinstance(value, bool):
            low, high = self.minimum, self.maximum
            if (low is not None and value < low) or (high is not None and value > high):
                raise ConfigError(f"{self.name} = {text} is out of range: {self.range_text()}")
        self._check_choices(value, text)
        return value

    def _convert(self, text: object) -> Value:
        what = "an int" if self.type is ValueType.INT else f"a {self.type.value}"
        wrong = ConfigError(f"{self.name} = {text!r} is not {what}: {self.range_text()}")
        if isinstance(text, str) and len(text) > _VALUE_LENGTH_MAX:
            raise ConfigError(f"{self.name} has a value of {len(text)} characters, more than {_VALUE_LENGTH_MAX}")
        match self.type:
            case ValueType.BOOLEAN:
                return _boolean(text, wrong)
            case ValueType.INT | ValueType.LONG:
                return _integer(text, wrong, INT32_MAX if self.type is ValueType.INT else INT64_MAX)
            case ValueType.DOUBLE:
                return _number(text, wrong)
            case ValueType.LIST:
                words = text.split(",") if isinstance(text, str) else text
                if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
                    raise wrong
                return tuple(dict.fromkeys(stripped for word in words if (stripped := word.strip())))
            case ValueType.STRING:
                if not isinstance(text, str):
                    raise wrong
                return text.strip()

    def range_text(self) -> str:
        """Return in words what is allowed, for messages and the documentation."""
        if self.choices:
            return f"{'some of' if self.type is ValueType.LIST else 'one of'} {', '.join(filter(None, self.choices))}"
        unit = f" {self.unit}" if self.unit else ""
        if self.minimum is not None and self.maximum is not None:
            return f"{_plain(self.minimum)} to {_plain(self.maximum)}{unit}"
        if self.minimum is not None:
            return f"at least {_plain(self.minimum)}{unit}"
        match self.type:
            case ValueType.BOOLEAN:
                return "true or false"
            case ValueType.LIST:
                return "words separated by commas"
            case ValueType.STRING:
                return "text"
            case _:
                return f"a whole number{unit}" if self.type is not ValueType.DOUBLE else f"a number{unit}"

    def format(self, value: Value) -> str:
        """Return the text that Kafka's tools show for `value`."""
        if isinstance(value, bool):
            return "true" if value else "false"
        return ",".join(value) if isinstance(value, tuple) else str(value)


def _plain(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else str(bound)


def _boolean(text: object, wrong: ConfigError) -> bool:
    if isinstance(text, bool):
        return text
    if isinstance(text, str) and (word := text.strip().lower()) in ("true", "false"):
        return word == "true"
    raise wrong


def _integer(text: object, wrong: ConfigError, largest: int) -> int:
    if isinstance(text, bool):
        raise wrong
    if isinstance(text, str):
        digits = text.strip().replace("_", "")
        # Python's int() takes much more than a configuration should: other scripts' digits, thousands of them.
        if not digits.isascii() or not digits.removeprefix("-").isdigit() or len(digits) > 20:
            raise wrong
        text = int(digits)
    if not isinstance(text, int) or not -largest - 1 <= text <= largest:
        raise wrong
    return text


def _number(text: object, wrong: ConfigError) -> float:
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise wrong
    try:
        number = float(text)
    except ValueError:
        raise wrong from None
    if number - number != 0:  # infinite or not a number
        raise wrong
    return number


def setting(
    default: Value,
    documentation: str,
    *,
    unit: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    dynamic: bool = False,
    only_dynamic: bool = False,
    sensitive: bool = False,
    long: bool = False,
    topic_name: str | None = None,
    at_most: str = "",
) -> Any:
    """Declare a setting as a dataclass field. Its name is the field's, with dots; its type follows the default's."""
    kind = _type_of(default, long)
    partial = functools.partial(
        Setting,
        type=kind,
        default=default,
        documentation=" ".join(documentation.split()),
        unit=unit,
        minimum=minimum,
        maximum=maximum,
        choices=choices,
        dynamic=dynamic,
        only_dynamic=only_dynamic,
        sensitive=sensitive,
        topic_name=topic_name,
        at_most=at_most,
    )
    return dataclasses.field(default=default, metadata={"setting": partial})


def _type_of(default: Value, long: bool) -> ValueType:
    match default:
        case bool():
            return ValueType.BOOLEAN
        case int():
            return ValueType.LONG if long else ValueType.INT
        case float():
            return ValueType.DOUBLE
        case tuple():
            return ValueType.LIST
        case str():
            return ValueType.STRING


def settings_of(config_class: type[PartConfig]) -> Mapping[str, Setting]:
    """Return every setting of a config class by name, in order."""
    made = (
        field.metadata["setting"](name=field.name.replace("_", "."))
        for field in dataclasses.fields(config_class)
        if "setting" in field.metadata
    )
    return MappingProxyType({one.name: one for one in made})


@dataclass(frozen=True)
class PartConfig:
    """What a part of a node goes by. Its fields are settings, or bounds that operators have no name for (plain fields).

    Raises `ConfigError` for values that can't work, or not together.
    """

    def __post_init__(self) -> None:
        settings = settings_of(type(self))
        for made in settings.values():
            value = getattr(self, made.attribute)
            made.check(value)
            if made.at_most and value > (most := getattr(self, settings[made.at_most].attribute)):
                raise ConfigError(f"{made.name} = {value} is more than {made.at_most} = {most}")


def did_you_mean(wrong: str, right: Iterable[str]) -> str:
    """Return `; did you mean X?` for the nearest right name, or nothing where none is near."""
    near = difflib.get_close_matches(wrong, list(right), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""
