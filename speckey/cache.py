"""What the user passes as ``thunder.jit(fn, cache=...)``, and the option itself."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import attrs

from speckey import thunder_hooks
from speckey.compiler import Entry
from speckey.dispatch import make_callable, table_of
from speckey.policies import LRU, AllDims, AutomaticNumbers, Drop, Numbers, Vary
from speckey.verify import check


@attrs.frozen
class SpecKeyCache:
    """The option ``thunder.jit(fn, cache=SpecKeyCache())``.

    One instance may serve several compiled callables; each has entries of its own.

    Attributes:
        vary: which sizes a program is compiled for any value of, and within which bounds
            (see ``speckey.policies.vary``).
        numbers: which ints and floats among the arguments it is compiled for any value of
            (see ``speckey.policies.numbers``).
        drop: what becomes of a call that needs one more entry, when there are many
            (see ``speckey.policies.drop``).
        max_entries: short for ``drop=LRU(max_entries)``.
        verify: whether to check results (see ``speckey.check``); slow.

    Raises:
        TypeError: ``vary``, ``numbers`` or ``drop`` is not a policy, or ``verify`` not a bool.
        ValueError: both ``drop`` and ``max_entries`` are given, or there is room for no entry.
    """

    vary: Vary = attrs.field(factory=AllDims)
    drop: Drop = attrs.field(default=None)
    numbers: Numbers = attrs.field(factory=AutomaticNumbers, kw_only=True)
    max_entries: int | None = attrs.field(default=None, kw_only=True, eq=False, repr=False)
    verify: bool = attrs.field(default=False, kw_only=True)

    def __attrs_post_init__(self) -> None:
        if isinstance(self.vary, type) or not isinstance(self.vary, Vary):
            raise TypeError(f"vary= expects a policy such as speckey.policies.AllDims(), got {self.vary!r}")
        if isinstance(self.numbers, type) or not isinstance(self.numbers, Numbers):
            policy = "speckey.policies.AutomaticNumbers()"
            raise TypeError(f"numbers= expects a policy such as {policy}, got {self.numbers!r}")
        if self.max_entries is not None and self.drop is not None:
            raise ValueError(f"max_entries={self.max_entries!r} is short for drop=LRU(...); give one of them")
        if self.drop is None:
            drop = LRU() if self.max_entries is None else LRU(self.max_entries)
            object.__setattr__(self, "drop", drop)
        if isinstance(self.drop, type) or not isinstance(self.drop, Drop):
            raise TypeError(f"drop= expects a policy such as speckey.policies.LRU(256), got {self.drop!r}")
        if not isinstance(self.verify, bool):
            raise TypeError(f"verify= expects True or False, got {self.verify!r}")


def jit(fn: Callable | None = None, /, *, cache: Any = None, **options: Any) -> Any:
    """``thunder.jit``, which also takes a ``SpecKeyCache``; any other call is passed through."""
    _check_instance(cache)
    if cache is None:
        cache = _cache_of_transformed.get()
    if not isinstance(cache, SpecKeyCache):
        if fn is None:
            return thunder_hooks.original_jit(cache=cache, **options)  # raises what it always raised
        return thunder_hooks.original_jit(fn, cache=cache, **options)
    if fn is None:
        return functools.partial(jit, cache=cache, **options)
    thunder_hooks.force_graph_code(fn)
    jfn = thunder_hooks.original_jit(fn, **options)
    thunder_hooks.name_cache_option(jfn, cache)
    compiled = make_callable(jfn, fn, cache.vary, cache.numbers, cache.drop)
    if cache.verify:
        check(compiled)
    return compiled


def compile(fn: Callable, recipe: Any = "auto", plugins: Any = None, *, cache: Any = None) -> Any:
    """``thunder.compile``, which also takes ``cache=SpecKeyCache()`` and hands it to the recipe's ``thunder.jit``."""
    if cache is not None:
        _check_instance(cache)
        recipe = thunder_hooks.recipe_with_options(fn, recipe, {"cache": cache})
    return thunder_hooks.original_compile(fn, recipe, plugins)


_cache_of_transformed: ContextVar[SpecKeyCache | None] = ContextVar("speckey_cache_of_transformed", default=None)


def add_transform(cfn: Any, **options: Any) -> Any:
    """``thunder.core.transforms.add_transform`` (``ddp``, ``fsdp``, ...): what it makes has the option of ``cfn``."""
    cache = thunder_hooks.cache_option(cfn)
    token = _cache_of_transformed.set(cache if isinstance(cache, SpecKeyCache) else None)
    try:
        return thunder_hooks.original_add_transform(cfn, **options)
    finally:
        _cache_of_transformed.reset(token)


def _check_instance(cache: Any) -> None:
    if isinstance(cache, type) and issubclass(cache, SpecKeyCache):
        raise TypeError(f"cache={cache.__name__} is the class; pass an instance: cache={cache.__name__}()")


functools.update_wrapper(jit, thunder_hooks.original_jit)
functools.update_wrapper(compile, thunder_hooks.original_compile)
functools.update_wrapper(add_transform, thunder_hooks.original_add_transform)
thunder_hooks.replace_entry_points(jit, compile, add_transform)


def entries(jfn: Any) -> tuple[Entry, ...]:
    """The entries of a compiled callable, oldest first.

    Raises:
        TypeError: ``jfn`` was not compiled with a ``SpecKeyCache``.
    """
    return tuple(table_of(jfn).entries)


def clear(jfn: Any) -> None:
    """Forget all entries of a compiled callable.  Statistics and reasons for retraces are kept.

    Raises:
        TypeError: ``jfn`` was not compiled with a ``SpecKeyCache``.
    """
    table_of(jfn).forget_all()
