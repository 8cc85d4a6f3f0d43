"""Many guards at once: what a module was when its guards were last checked, and whether it still is.

A model reads hundreds of attributes.  What such a read gives is settled by the object being the same,
of the same class, and no key of the dicts involved having been set since: the object's own, those of
its class and the classes above.  So the versions of a few dicts stand for all guards below them, and
one call of torch checks all tensors.  Anything that may have changed is looked at guard by guard, and
then a new snapshot is taken.

Sufficient, never necessary: a guard that does not fit in here is checked on its own.
"""

from __future__ import annotations

import inspect
import operator
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import FunctionType, MethodType
from typing import Any

import torch

from speckey import torch_private
from speckey.guards import (
    HEAP_TYPE,
    Box,
    Guard,
    Path,
    Presence,
    TensorMetadata,
    has_own_class,
    is_library,
    is_library_name,
)

_is = operator.is_
_get_code = operator.attrgetter("__code__")
_get_defaults = operator.attrgetter("__defaults__")
_get_dict = operator.attrgetter("__dict__")
_PATIENCE = 4
_LONGEST_WAIT = 1024


class NotCovered(Exception):
    """Versions of dicts do not settle this guard."""


class Snapshot:
    """``holds()``: nothing that the guards look at can have changed since ``take()``.

    Both give the values of ``rows`` then; ``holds()`` gives None where something may have changed.

    Attributes:
        covered: the guards that it stands for.
        rows: what else to keep: functions of dicts of which nothing may change.
    """

    def __init__(self, fn: Any, guards: Mapping[Path, Guard], used: Mapping[Path, tuple[dict, str]]) -> None:
        self.rows: list[tuple[Callable[[dict], tuple], dict]] = []
        self._fn = fn
        self._used = used  # from where a program takes tensors: dicts of which nothing may change either
        self._served = 0
        self._penalty = 1
        self._wait = 0
        self._waited = False
        self.holds: Callable[[], tuple | None] = self._never
        self.covered: dict[Path, Guard] = {}
        if torch_private.available:
            for path, guard in guards.items():
                try:
                    _Plan(fn).add(guard)
                except Exception:  # whatever a program's objects raise: the guard is checked on its own
                    continue
                self.covered[path] = guard

    @staticmethod
    def _never() -> None:
        return None

    def _waiting(self) -> None:
        self._wait -= 1

    def take(self) -> tuple:
        """To be called when all covered guards have just been found to hold."""
        self._prepare()
        return self._values()

    def _values(self) -> tuple:
        return tuple([get(values) for get, values in self.rows])

    def _prepare(self) -> None:
        if self._wait > 0:
            return
        if not self._waited:
            # A module that sets its own attributes when it runs would have us start over on every call.
            self._penalty = 1 if self._served >= self._penalty else min(2 * self._penalty, _LONGEST_WAIT)
            if self._penalty > _PATIENCE:
                self._wait, self._waited, self.holds = self._penalty, True, self._waiting
                return
        self._served, self._waited = 0, False
        try:
            holds = self._compile(self._plan())
            # Another thread may have changed something since the guards were checked, or while this looked around.
            self.holds = holds if self._still_true() and holds() is not None else self._never
        except Exception:
            self.holds = self._never

    def _plan(self) -> _Plan:
        plan = _Plan(self._fn)
        for values, _ in self._used.values():
            plan.dicts[id(values)] = values
        for guard in self.covered.values():
            plan.add(guard)
        return plan

    def _still_true(self) -> bool:
        plan = self._plan()
        return all(guard.holds(self._fn, (), {}) for guard in self.covered.values()) and all(
            values[name] is plan.value(path) for path, (values, name) in self._used.items() if path in self.covered
        )

    def _compile(self, plan: _Plan) -> Callable[[], tuple | None]:
        rows = self._values()
        version = torch_private.version_of
        tensors = tuple(plan.tensors.values())
        dicts = tuple(plan.dicts.values())
        objects = tuple(o for i, o in plan.objects.items() if i not in plan.tensors)
        empty = tuple(plan.empty.values())
        versions = tuple(map(version, dicts))
        own_versions = tuple(map(version, map(_get_dict, objects)))
        classed = (*objects, *(o for i, o in plan.classes.items() if i not in plan.objects and i not in plan.tensors))
        types = tuple(map(type, classed))
        functions = tuple(plan.functions.values())
        codes, defaults = tuple(map(_get_code, functions)), tuple(map(_get_defaults, functions))
        check = torch_private.tensor_check(tensors, sizes=True) if tensors else _nothing_to_check
        if check is None:
            raise NotCovered

        def holds() -> tuple | None:
            if (
                tuple(map(version, dicts)) == versions
                and tuple(map(version, map(_get_dict, objects))) == own_versions
                and all(map(_is, map(type, classed), types))
                and not any(empty)
                and check(*tensors)
                and all(map(_is, map(_get_code, functions), codes))
                and all(map(_is, map(_get_defaults, functions), defaults))
            ):
                self._served += 1
                return rows
            return None

        return holds


def _nothing_to_check() -> bool:
    return True


class _Plan:
    """What must be unchanged for some guards to hold as they do now."""

    def __init__(self, fn: Any) -> None:
        self.objects: dict[int, Any] = {}
        self.dicts: dict[int, dict] = {}
        self.empty: dict[int, Any] = {}
        self.classes: dict[int, Any] = {}  # objects that only their class is looked at
        self.functions: dict[int, FunctionType] = {}
        self.tensors: dict[int, torch.Tensor] = {}
        self._known: dict[Path, Any] = {("fn",): fn}

    def add(self, guard: Guard) -> None:
        path, frozen = guard.path, guard.frozen
        if isinstance(frozen, Presence):
            if path[0] == "attr":
                self._attribute(self.value(path[1]), path[2], ask=True)
            elif path[1][0] == "attr" and path[1][2] == "__dict__":
                self._attribute(self.value(path[1][1]), "__dict__")  # its version stands for what is in it
            else:
                self._item(self.value(path[1]))
            return
        value = self.value(path)
        if isinstance(frozen, TensorMetadata):
            self.tensors[id(value)] = value
        else:
            self._content(value, frozen)

    def _content(self, value: Any, frozen: Any) -> None:
        """What makes ``freeze(value)`` stay as it is, the value being the same object."""
        kind = type(value)
        if kind in (dict, OrderedDict, list, set):
            if not value:
                self.empty[id(value)] = value
                return
            if kind in (list, set) or isinstance(frozen, Box):
                raise NotCovered
            self.dicts[id(value)] = value
            for key, item in value.items():
                if not isinstance(key, (str, int)):
                    raise NotCovered
                self._content(item, None)
        elif kind in (tuple, torch.Size):
            for item in value:
                self._content(item, None)
        elif isinstance(value, (dict, list, set, tuple)) or (
            isinstance(value, (int, float, str)) and kind not in (bool, int, float, str)
        ):
            raise NotCovered
        elif isinstance(value, FunctionType):
            self._function(value)
        elif isinstance(value, MethodType):
            self._content(value.__func__, None)
        elif has_own_class(value):
            self.classes[id(value)] = value

    def _function(self, function: FunctionType) -> None:
        if is_library(function):
            return
        self.functions[id(function)] = function
        if function.__kwdefaults__:
            raise NotCovered
        for value in function.__defaults__ or ():
            self._content(value, None)

    def value(self, path: Path) -> Any:
        if path in self._known:
            return self._known[path]
        kind = path[0]
        if kind == "object":
            value = path[1].value
        elif kind == "attr":
            value = self._attribute(self.value(path[1]), path[2])
        elif kind == "item":
            parent = self.value(path[1])
            self._item(parent)
            value = parent[path[2]]
        else:
            raise NotCovered
        self._known[path] = value
        return value

    def _item(self, parent: Any) -> None:
        """That items of the parent stay as they are."""
        if type(parent) in (dict, OrderedDict):
            if "__builtins__" in parent and not is_library_name(parent.get("__name__")):
                raise NotCovered  # globals of the user's, which may be set all the time
            self.dicts[id(parent)] = parent
        elif type(parent) is not tuple:
            raise NotCovered

    def _attribute(self, parent: Any, name: str, *, ask: bool = False) -> Any:
        """``parent.name``, or whether it is there, where dicts settle it."""
        kind = type(parent)
        if (kind, name) in _FIXED:
            return getattr(parent, name)
        if kind.__getattribute__ is not object.__getattribute__ or type(getattr(parent, "__dict__", None)) is not dict:
            raise NotCovered
        self.objects[id(parent)] = parent
        for cls in kind.__mro__:
            if cls.__flags__ & HEAP_TYPE:
                namespace = torch_private.dict_of_type(cls)
                self.dicts[id(namespace)] = namespace
        if name == "__dict__":
            return parent.__dict__
        of_class = inspect.getattr_static(kind, name, _ABSENT)
        if name in parent.__dict__ and not hasattr(type(of_class), "__set__"):
            return parent.__dict__[name]
        if of_class is not _ABSENT:
            if isinstance(of_class, FunctionType):
                self._content(of_class, None)
                return getattr(parent, name)
            if hasattr(type(of_class), "__get__"):
                raise NotCovered  # a property: what it reads has guards, what it makes of it may be anything
            return of_class
        fallback = getattr(kind, "__getattr__", None)
        if fallback is torch.nn.Module.__getattr__:
            for place in ("_parameters", "_buffers", "_modules"):
                values = parent.__dict__[place]
                self.dicts[id(values)] = values
                if name in values:
                    return values[name]
        elif fallback is not None:
            raise NotCovered
        if ask:
            return None
        raise NotCovered


_FIXED = {(MethodType, "__func__"), (MethodType, "__self__"), (FunctionType, "__globals__")}  # cannot be set
_ABSENT = object()
