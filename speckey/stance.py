"""What becomes of calls that find no entry, for a while: they compile, fail, or run uncompiled."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Literal

Stance = Literal["default", "fail_on_retrace", "eager_on_retrace"]
_STANCES = ("default", "fail_on_retrace", "eager_on_retrace")
_entered: ContextVar[tuple[str, ...]] = ContextVar("speckey_stance", default=())


class stance:
    """What becomes of a call that finds no entry, inside a ``with`` block or a decorated function.

    ``"default"``: it is compiled.  ``"fail_on_retrace"``: it raises a ``RetraceError`` that names the closest
    entry and the first thing that differed.  ``"eager_on_retrace"``: the original function runs uncompiled.
    A call that an entry fits is served as always.  ``speckey.warmup`` compiles inside any of them.

    Holds for the current thread or task only; the innermost one counts.

    Raises:
        ValueError: another word.
    """

    def __init__(self, name: Stance) -> None:
        if not isinstance(name, str) or name not in _STANCES:
            raise ValueError(f"stance() expects one of {', '.join(map(repr, _STANCES))}, got {name!r}")
        self.name = name

    def __enter__(self) -> None:
        _entered.set((*_entered.get(), self.name))

    def __exit__(self, *error: object) -> None:
        _entered.set(_entered.get()[:-1])

    def __call__(self, fn: Callable) -> Callable:
        if not callable(fn):
            raise TypeError(f"@stance({self.name!r}) expects a function, got {fn!r}")

        @functools.wraps(fn)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self:
                return fn(*args, **kwargs)

        return inside


def current_stance() -> str:
    entered = _entered.get()
    return entered[-1] if entered else "default"
