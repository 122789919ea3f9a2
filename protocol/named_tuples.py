"""How a named tuple is made where that is hot."""

from __future__ import annotations

from typing import Final

new_tuple: Final = tuple.__new__
"""`new_tuple(Type, (its, fields))`: without the type's own constructor, which is plain Python and costs three times as
much. The fields are not counted.
"""
