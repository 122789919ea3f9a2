"""Other methods for a class that may be compiled: Python refuses to set attributes of such a class."""

from __future__ import annotations

import ctypes
import gc
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pytest

_HEAP_TYPE: Final = 1 << 9
"""Py_TPFLAGS_HEAPTYPE: the class was made by Python, which lets its attributes be set."""


class _Namespace:
    """The attributes of a compiled class, to be changed by `monkeypatch.setitem`."""

    def __init__(self, owner: type) -> None:
        self._owner = owner
        (self._names,) = gc.get_referents(owner.__dict__)

    def get(self, name: str, default: Any) -> Any:
        return self._names.get(name, default)

    def __setitem__(self, name: str, value: Any) -> None:
        self._names[name] = value
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(self._owner))

    def __delitem__(self, name: str) -> None:
        del self._names[name]
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(self._owner))


def plant(owner: type, name: str, value: Any) -> None:
    """Set a method for good. Compiled code that calls it with C types is not reached by it."""
    if owner.__flags__ & _HEAP_TYPE:
        setattr(owner, name, value)
    else:
        _Namespace(owner)[name] = value


def set_method(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, value: Any) -> None:
    """Do what `monkeypatch.setattr` does, as far as `plant` does."""
    if owner.__flags__ & _HEAP_TYPE:
        monkeypatch.setattr(owner, name, value)
    else:
        monkeypatch.setitem(_Namespace(owner), name, value)  # type: ignore[arg-type]
