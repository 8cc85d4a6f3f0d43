"""Numbers among the arguments whose values tracing must not see.

A number that is free is not in the signature, so that each way of looking at its value has to be a fact.
thunder's interpreter makes a proxy of a number where the program reads it; but a tuple of numbers handed
to a function as a whole goes there as it is.  So tracing is given arguments without the numbers: in their
places are objects that are ints or floats to ``isinstance`` and refuse everything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from speckey.guards import Path


class ValueWithheld(Exception):
    """Something other than the traced program looked at the value of a free number."""


class Withheld:
    """Stands for a number; ``withheld_value`` is for the hooks that make a proxy of it."""

    __slots__ = ("withheld_value",)

    def __init__(self, value: int | float) -> None:
        self.withheld_value = value

    @property
    def __class__(self) -> type:  # the type of a number is in the signature
        return type(self.withheld_value)

    def __getattr__(self, name: str) -> Any:
        raise ValueWithheld(f"{name} of a number")


def _refuse(name: str) -> Any:
    def refuse(self: Any, *others: Any) -> Any:
        raise ValueWithheld(f"{name} of a number")

    return refuse


_KEPT = {"__class__", "__new__", "__init__", "__getattribute__", "__getattr__", "__setattr__", "__delattr__"}
_KEPT |= {"__init_subclass__", "__subclasshook__", "__doc__", "__dir__", "__slots__", "__module__"}
for _name in {*dir(int), *dir(float), "__len__", "__iter__", "__getitem__", "__contains__", "__call__"} - _KEPT:
    if _name.startswith("__"):
        setattr(Withheld, _name, _refuse(_name))


def is_withheld(value: object) -> bool:
    return type(value) is Withheld


def withhold(args: tuple, kwargs: Mapping[str, Any], paths: Mapping[Path, int]) -> tuple[tuple, dict[str, Any]]:
    """The arguments without the numbers at ``paths``, which lead there through tuples only.

    Tuples are built anew, everything else is handed on; a tuple that is met twice stays one.
    """
    made: dict[int, Any] = {}

    def visit(value: Any, path: Path) -> Any:
        if path in paths:
            return Withheld(value)
        if type(value) is not tuple or not value:
            return value
        if id(value) not in made:
            items = [visit(v, ("item", path, i)) for i, v in enumerate(value)]
            same = all(a is b for a, b in zip(items, value, strict=True))
            made[id(value)] = value if same else tuple(items)
        return made[id(value)]

    return (
        tuple([visit(v, ("item", ("args",), i)) for i, v in enumerate(args)]),
        {k: visit(v, ("item", ("kwargs",), k)) for k, v in kwargs.items()},
    )


def holds_withheld(value: object, depth: int = 4) -> bool:
    """Whether a number is withheld in a value or the plain containers in it."""
    if type(value) is Withheld:
        return True
    if depth and type(value) in (tuple, list, set):
        return any(holds_withheld(v, depth - 1) for v in value)  # type: ignore[attr-defined]
    if depth and type(value) is dict:
        return any(holds_withheld(v, depth - 1) for v in value.values())  # type: ignore[attr-defined]
    if type(value) is slice:
        return any(type(v) is Withheld for v in (value.start, value.stop, value.step))
    return False
