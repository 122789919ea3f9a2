"""Methods that make a client have its options: those of the class, in signatures and errors, without the address."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from semel.protocol.errors import UsageError

P = ParamSpec("P")
Self = TypeVar("Self")
Result = TypeVar("Result")


def takes_options_of(
    original: Callable[Concatenate[Any, P], object],
) -> Callable[[Callable[..., Result]], Callable[Concatenate[Any, P], Result]]:
    """Decorate a method that passes its arguments to `original`, behind the bootstrap that comes first there."""
    first, *options = inspect.signature(original).parameters.values()

    def decorate(method: Callable[..., Result]) -> Callable[Concatenate[Any, P], Result]:
        own = inspect.signature(method)

        @functools.wraps(method)
        def made(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Result:
            if first.name in kwargs:
                raise UsageError(f"{method.__name__}() takes no {first.name}: its clients are of the log that is open")
            return method(self, *args, **kwargs)

        this = next(iter(own.parameters.values()))
        made.__signature__ = own.replace(parameters=[this, *options])  # type: ignore[attr-defined]
        return made

    return decorate
