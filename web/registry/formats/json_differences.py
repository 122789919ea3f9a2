"""When data that was valid by one JSON Schema is valid by another one: Confluent's documented rules.

What matters most is the content model: an object is open where it may have properties that it does not name, closed
where it may not (`additionalProperties: false`), and partially open where those must be of some schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Final

from semel.web.registry.formats.base import DIFFERENCES_MAX, Difference, Steps
from semel.web.registry.formats.json_references import Documents

_TYPES: Final = frozenset({"null", "boolean", "object", "array", "string", "integer", "number"})
_UPPER: Final = {
    "maxLength": ("string", "MAX_LENGTH"),
    "maxItems": ("array", "MAX_ITEMS"),
    "maxProperties": ("object", "MAX_PROPERTIES"),
    "maximum": ("number", "MAXIMUM"),
    "exclusiveMaximum": ("number", "EXCLUSIVE_MAXIMUM"),
}
_LOWER: Final = {
    "minLength": ("string", "MIN_LENGTH"),
    "minItems": ("array", "MIN_ITEMS"),
    "minProperties": ("object", "MIN_PROPERTIES"),
    "minimum": ("number", "MINIMUM"),
    "exclusiveMinimum": ("number", "EXCLUSIVE_MINIMUM"),
}
_EXACT: Final = {
    "pattern": ("string", "PATTERN"),
    "contains": ("array", "CONTAINS"),
    "minContains": ("array", "MIN_CONTAINS"),
    "maxContains": ("array", "MAX_CONTAINS"),
    "unevaluatedItems": ("array", "UNEVALUATED_ITEMS"),
    "propertyNames": ("object", "PROPERTY_NAMES"),
    "unevaluatedProperties": ("object", "UNEVALUATED_PROPERTIES"),
    "if": ("", "CONDITION"),
    "then": ("", "CONDITION"),
    "else": ("", "CONDITION"),
}
"""What only ever narrows: it may go, and neither be added nor changed."""
_PARTS_IN_A_STEP: Final = 100
_CHARACTERS_IN_A_STEP: Final = 1_000
_SUMS: Final = ("anyOf", "oneOf")
_COMBINING: Final = frozenset({*_SUMS, "allOf"})


class Comparison:
    """One comparison of an old schema with a new one."""

    def __init__(self, old: Documents, new: Documents) -> None:
        self._old = old
        self._new = new
        self._steps = Steps()
        self._under_way: set[tuple[int, int]] = set()
        self._kept: list[Any] = []
        self._nothing: dict[int, bool] = {}
        self._listed: dict[int, frozenset[str]] = {}
        self._equal: dict[tuple[int, int], bool] = {}

    def differences(self, old: Any, new: Any, path: str) -> list[Difference]:
        """Return why something valid by `old` may not be valid by `new`, `DIFFERENCES_MAX` reasons at most.

        Raises `InvalidSchemaError`.
        """
        self._steps.take()
        pair = (id(old), id(new))
        if pair in self._under_way:
            return []  # where a schema is in itself, it is as good as the rest of it
        self._under_way.add(pair)
        try:
            return self._resolved(self._old.resolved(old), self._new.resolved(new), path)[:DIFFERENCES_MAX]
        finally:
            self._under_way.discard(pair)

    def _resolved(self, old: Any, new: Any, path: str) -> list[Difference]:
        # What `resolved` makes is kept, so that no other one gets the same id meanwhile.
        self._kept += [old, new]
        self._steps.take((_parts(old) + _parts(new)) // _PARTS_IN_A_STEP)
        if new is True or new == {} or self._allows_nothing(old):
            return []
        if new is False:
            return [Difference("TYPE_NARROWED", path, f"nothing is valid at {path!r} any more")]
        if old is True:
            old = {}
        if not isinstance(old, dict) or not isinstance(new, dict):  # what drafts before 6 may have
            return (
                []
                if self._is_equal(old, new)
                else [Difference("SCHEMA_CHANGED", path, f"what is at {path!r} has changed")]
            )
        if any(self._satisfies(branch, new, path) for branch in old.get("allOf", ())):
            return []
        sums = [old[sum_] for sum_ in _SUMS if old.get(sum_)]
        if any(all(self._satisfies(branch, new, path) for branch in branches) for branches in sums):
            return []
        found = self._base(old, new, path)
        if found and any(self._satisfies(branch, _without(new), path) for branch in old.get("allOf", ())):
            found = []
        for sum_ in _SUMS:
            branches = old.get(sum_)
            if found and branches and all(self._satisfies(branch, _without(new), path) for branch in branches):
                found = []
        return found + self._sums(old, new, path) + self._products(old, new, path)

    def _satisfies(self, old: Any, new: Any, path: str) -> bool:
        self._kept.append(new)
        return not self.differences(old, new, path)

    def _sums(self, old: dict[str, Any], new: dict[str, Any], path: str) -> list[Difference]:
        found = []
        for sum_ in _SUMS:
            branches = new.get(sum_)
            if not branches:
                continue
            if sum_ == "oneOf" and len(branches) > 1 and len(old.get("anyOf", ())) > 1:
                found.append(Difference("COMBINED_TYPE_CHANGED", f"{path}{sum_}", f"anyOf became oneOf at {path!r}"))
                continue
            alternatives = next((old[each] for each in _SUMS if old.get(each)), None)
            written = [{**_without(old), "allOf": [one]} for one in alternatives] if alternatives else [old]
            self._kept += written
            for index, one in enumerate(written):
                if not any(self._satisfies(one, branch, path) for branch in branches):
                    kind = "SUM_TYPE_NARROWED" if alternatives else "TYPE_CHANGED"
                    if alternatives:
                        what = f"no schema of {sum_} at {path!r} takes all that number {index} of the old ones took"
                    else:
                        what = f"no schema of {sum_} at {path!r} takes all that the old schema took"
                    found.append(Difference(kind, f"{path}{sum_}", what))
        return found

    def _products(self, old: dict[str, Any], new: dict[str, Any], path: str) -> list[Difference]:
        found = []
        for index, branch in enumerate(new.get("allOf", ())):
            if any(self._satisfies(one, branch, path) for one in old.get("allOf", ())):
                continue
            if not self._satisfies(old, branch, path):
                what = f"schema {index} of allOf at {path!r} asks for more than the old schema did"
                found.append(Difference("PRODUCT_TYPE_EXTENDED", f"{path}allOf/{index}", what))
        return found

    def _base(self, old: dict[str, Any], new: dict[str, Any], path: str) -> list[Difference]:
        before, after = _types(old), _types(new)
        lost = {kind for kind in before if kind not in after and not (kind == "integer" and "number" in after)}
        if lost:
            kind = "TYPE_NARROWED" if before & after or lost == {"number"} else "TYPE_CHANGED"
            return [Difference(kind, path, f"{' and '.join(sorted(lost))} is not valid at {path!r} any more")]
        found = self._values(old, new, path)
        found += self._bounds(old, new, before, path)
        if "not" in new and ("not" not in old or self.differences(new["not"], old["not"], f"{path}not/")):
            found.append(Difference("NOT_TYPE_EXTENDED", f"{path}not", f"`not` at {path!r} excludes more"))
        if "object" in before:
            found += self._object(old, new, path)
        if "array" in before:
            found += self._array(old, new, path)
        return found

    def _object(self, old: dict[str, Any], new: dict[str, Any], path: str) -> list[Difference]:
        found = self._required(old, new, path)
        before, after = old.get("properties", {}), new.get("properties", {})
        for name in after:
            place = f"{path}properties/{name}"
            if name in before:
                found += self.differences(before[name], after[name], f"{place}/")
                continue
            rest = self._rest(old, name)
            if rest is False:
                continue  # nobody can have written it
            if rest is True and after[name] not in (True, {}):
                what = f"{name!r} was added to an open content model at {path!r}: it may have been written as anything"
                found.append(Difference("PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL", place, what))
            elif rest is not True and self.differences(rest, after[name], f"{place}/"):
                what = f"{name!r} was added at {path!r}, and the old schema for other properties allows more"
                found.append(Difference("PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", place, what))
        for name in before:
            if name in after or before[name] is False:
                continue
            rest = self._rest(new, name)
            place = f"{path}properties/{name}"
            if rest is False:
                what = f"{name!r} was removed from a closed content model at {path!r}, and may have been written"
                found.append(Difference("PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL", place, what))
            elif rest is not True and self.differences(before[name], rest, f"{place}/"):
                what = f"{name!r} was removed at {path!r}, and the schema for other properties does not cover it"
                found.append(Difference("PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", place, what))
        return found + self._other_properties(old, new, path) + self._dependencies(old, new, path)

    def _other_properties(self, old: dict[str, Any], new: dict[str, Any], path: str) -> list[Difference]:
        before, after = old.get("additionalProperties", True), new.get("additionalProperties", True)
        place = f"{path}additionalProperties"
        found = []
        if before is not False and after is False:
            found.append(Difference("ADDITIONAL_PROPERTIES_REMOVED", place, f"the object at {path!r} was closed"))
        elif before is not False and self.differences(before, after, f"{place}/"):
            what = f"what other properties at {path!r} may be was narrowed"
            found.append(Difference("ADDITIONAL_PROPERTIES_NARROWED", place, what))
        patterns = old.get("patternProperties", {})
        for pattern, schema in new.get("patternProperties", {}).items():
            if pattern in patterns:
                found += self.differences(patterns[pattern], schema, f"{path}patternProperties/{pattern}/")
            elif before is not False and self.differences(before, schema, f"{path}patternProperties/{pattern}/"):
                what = f"properties like {pattern!r} at {path!r} may have been written as anything"
                found.append(Difference("PATTERN_PROPERTY_ADDED", f"{path}patternProperties/{pattern}", what))
        for pattern, schema in patterns.items():
            if pattern not in new.get("patternProperties", {}) and (
                after is False or self.differences(schema, after, f"{path}patternProperties/{pattern}/")
            ):
                what = f"properties like {pattern!r} at {path!r} are not valid any more"
                found.append(Difference("PATTERN_PROPERTY_REMOVED", f"{path}patternProperties/{pattern}", what))
        return found

    def _dependencies(self, old: dict[str, Any], new: dict[str, Any], path: str) -> list[Difference]:
        found = []
        for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
            before = old.get(keyword, {})
            for name, needed in new.get(keyword, {}).items():
                place = f"{path}{keyword}/{name}"
                if isinstance(needed, list):
                    self._steps.take((len(needed) + _parts(before)) // _PARTS_IN_A_STEP)
                    more = set(needed) - set(before.get(name, ()) if isinstance(before.get(name, ()), list) else ())
                    if more:
                        what = f"{name!r} at {path!r} needs {', '.join(sorted(more))}, too"
                        found.append(Difference("DEPENDENCY_ARRAY_EXTENDED", place, what))
                elif self.differences(before.get(name, {}), needed, f"{place}/"):
                    what = f"what has {name!r} at {path!r} has to be of another schema"
                    found.append(Difference("DEPENDENCY_SCHEMA_CHANGED", place, what))
        return found

    def _array(self, old: dict[str, Any], new: dict[str, Any], path: str) -> list[Difference]:
        found = []
        if new.get("uniqueItems") and not old.get("uniqueItems"):
            found.append(Difference("UNIQUE_ITEMS_ADDED", f"{path}uniqueItems", f"items at {path!r} must differ now"))
        before, rest_before = _items(old)
        after, rest_after = _items(new)
        for index in range(max(len(before), len(after))):
            place = f"{path}items/{index}"
            was = before[index] if index < len(before) else rest_before
            now = after[index] if index < len(after) else rest_after
            if was is False:
                continue  # no array was so long
            if self.differences(was, now, f"{place}/"):
                if index >= len(before):
                    kind = "ITEM_ADDED_TO_OPEN_CONTENT_MODEL"
                else:
                    kind = "ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL" if index >= len(after) else "ITEM_CHANGED"
                found.append(Difference(kind, place, f"item {index} at {path!r} may have been something else"))
        if rest_before is not False:
            if rest_after is False:
                what = f"further items at {path!r} are not valid any more"
                found.append(Difference("ADDITIONAL_ITEMS_REMOVED", f"{path}items", what))
            else:
                found += self.differences(rest_before, rest_after, f"{path}items/")
        return found

    def _allows_nothing(self, schema: Any) -> bool:
        if not isinstance(schema, dict):
            return schema is False
        found = self._nothing.get(id(schema))
        if found is None:
            self._steps.take()
            found = any(map(self._allows_nothing, schema.get("allOf", ()))) or any(
                schema.get(sum_) and all(map(self._allows_nothing, schema[sum_])) for sum_ in _SUMS
            )
            self._nothing[id(schema)] = found
        return found

    def _is_equal(self, old: Any, new: Any) -> bool:
        """Compare parts that may be large, each pair once."""
        self._kept += [old, new]
        pair = (id(old), id(new))
        if pair not in self._equal:
            self._equal[pair] = bool(old == new)
        return self._equal[pair]

    def _values(self, old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> list[Difference]:
        """Compare `enum` and `const`: which values there can be at all."""
        after = self._values_of(new)
        if after is None:
            return []
        before = self._values_of(old)
        if before is None:
            return [
                Difference("ENUM_ARRAY_ADDED", f"{path}enum", f"what was any value at {path!r} is one of a list now")
            ]
        lost = before - after
        if not lost:
            return []
        kind = "ENUM_ARRAY_NARROWED" if after < before else "ENUM_ARRAY_CHANGED"
        return [Difference(kind, f"{path}enum", f"{', '.join(sorted(lost))} is not valid at {path!r} any more")]

    def _values_of(self, schema: Mapping[str, Any]) -> frozenset[str] | None:
        if "const" not in schema and "enum" not in schema:
            return None
        given = schema["const"] if "const" in schema else schema["enum"]
        values = [given] if "const" in schema else given
        place = id(given)
        if place not in self._listed:
            self._kept.append(given)
            self._listed[place] = frozenset(json.dumps(value, sort_keys=True) for value in values)
        return self._listed[place]

    def _bounds(
        self, old: Mapping[str, Any], new: Mapping[str, Any], before: frozenset[str], path: str
    ) -> list[Difference]:
        found = []
        tables: tuple[tuple[Mapping[str, tuple[str, str]], Callable[[Any, Any], bool], str], ...] = (
            (_UPPER, lambda was, now: now < was, "DECREASED"),
            (_LOWER, lambda was, now: now > was, "INCREASED"),
            (_EXACT, lambda was, now: not self._is_equal(was, now), "CHANGED"),
        )
        for table, is_narrower, how in tables:
            for keyword, (kind, name) in table.items():
                if isinstance(new.get(keyword), bool) and keyword.startswith("exclusive"):
                    # In draft 4 it says whether the bound beside it is one of the values.
                    if new[keyword] and old.get(keyword) is not True:
                        found.append(
                            Difference(f"{name}_ADDED", f"{path}{keyword}", f"{keyword} was added at {path!r}")
                        )
                    continue
                if keyword not in new or (
                    kind and kind not in before and not (kind == "number" and "integer" in before)
                ):
                    continue
                if keyword not in old or (isinstance(old[keyword], bool) and table is not _EXACT):
                    what = f"{keyword} was added at {path!r}"
                    found.append(Difference(f"{name}_ADDED", f"{path}{keyword}", what))
                elif is_narrower(old[keyword], new[keyword]):
                    what = f"{keyword} at {path!r} was {json.dumps(old[keyword])} and is {json.dumps(new[keyword])}"
                    found.append(Difference(f"{name}_{how}", f"{path}{keyword}", what))
        if "multipleOf" in new and before & {"number", "integer"}:
            was, now = old.get("multipleOf"), new["multipleOf"]
            if was is None or not _is_multiple(was, now):
                kind = "MULTIPLE_OF_ADDED" if was is None else "MULTIPLE_OF_CHANGED"
                found.append(
                    Difference(kind, f"{path}multipleOf", f"numbers at {path!r} must be multiples of {now} now")
                )
        return found

    def _required(self, old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> list[Difference]:
        before = frozenset(_names(old))
        properties = new.get("properties", {})
        found = []
        for name in _names(new):
            schema = properties.get(name, {})
            if name in before or (isinstance(schema, dict) and "default" in schema):
                continue
            self._steps.take()
            is_new = name not in old.get("properties", {}) and name in properties
            kind = "REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL" if is_new else "REQUIRED_ATTRIBUTE_ADDED"
            found.append(Difference(kind, f"{path}required/{name}", f"{name!r} at {path!r} is required now"))
        return found

    def _rest(self, schema: Mapping[str, Any], name: str) -> Any:
        """Return the schema of a property that is not named: True where it may be anything, False where it may not."""
        self._steps.take()
        for pattern, each in schema.get("patternProperties", {}).items():
            self._steps.take(1 + (len(pattern) + len(name)) // _CHARACTERS_IN_A_STEP)
            if _matches(pattern, name):
                return each
        rest = schema.get("additionalProperties", True)
        return True if rest == {} else rest


def _parts(schema: Any) -> int:
    """Return how much there is to look at in a schema, without what is in its parts."""
    if not isinstance(schema, dict):
        return 0
    return len(schema) + sum(len(each) for each in schema.values() if isinstance(each, dict | list))


def _names(schema: Mapping[str, Any]) -> list[str]:
    """Return what is required. In draft 3 that is no list."""
    given = schema.get("required")
    return [name for name in given if isinstance(name, str)] if isinstance(given, list) else []


def _types(schema: Mapping[str, Any]) -> frozenset[str]:
    given = schema.get("type")
    if given is None:
        for keyword in ("const", "enum"):
            if keyword in schema:
                values = [schema["const"]] if keyword == "const" else schema["enum"]
                return frozenset(map(_type_of, values))
        return _TYPES
    return frozenset([given] if isinstance(given, str) else [each for each in given if isinstance(each, str)])


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    for kinds, name in ((bool, "boolean"), (str, "string"), (dict, "object"), (list, "array"), (int, "integer")):
        if isinstance(value, kinds):
            return name
    return "number"


def _is_multiple(number: Any, of: Any) -> bool:
    try:
        return not Fraction(str(number)) % Fraction(str(of))
    except (ValueError, ZeroDivisionError):  # JSON in Python may have infinite numbers
        return bool(number == of)


def _matches(pattern: str, name: str) -> bool:
    """Plain patterns alone are matched here: others could keep the registry busy for ever."""
    begins, ends = pattern.startswith("^"), pattern.endswith("$")
    text = pattern.removeprefix("^").removesuffix("$")
    if text in (".*", "") or (text == ".+" and name):
        return True
    if re.escape(text) != text:
        return False
    if begins and ends:
        return name == text
    return name.startswith(text) if begins else name.endswith(text) if ends else text in name


def _items(schema: Mapping[str, Any]) -> tuple[list[Any], Any]:
    """Return the schemas of the first items, and that of all further ones."""
    if isinstance(schema.get("prefixItems"), list):
        return schema["prefixItems"], schema.get("items", True)
    items = schema.get("items", True)
    return (items, schema.get("additionalItems", True)) if isinstance(items, list) else ([], items)


def _without(schema: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name not in _COMBINING}
