"""What the user passes as ``thunder.jit(fn, cache=...)``, and the option itself."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import attrs

from speckey import thunder_hooks
from speckey.compiler import Entry
from speckey.dispatch import Table, make_callable
from speckey.policies import AllDims, AutomaticNumbers, Numbers, Vary


@attrs.frozen
class SpecKeyCache:
    """The option ``thunder.jit(fn, cache=SpecKeyCache())``.

    One instance may serve several compiled callables; each has entries of its own.

    Attributes:
        vary: which sizes a program is compiled for any value of (see ``speckey.policies``).
        numbers: which ints and floats among the arguments it is compiled for any value of.

    Raises:
        TypeError: one of them is not a policy.
    """

    vary: Vary = attrs.field(factory=AllDims)
    numbers: Numbers = attrs.field(factory=AutomaticNumbers, kw_only=True)

    @vary.validator
    def _check_vary(self, attribute: Any, value: object) -> None:
        if isinstance(value, type) or not isinstance(value, Vary):
            raise TypeError(f"vary= expects a policy such as speckey.policies.AllDims(), got {value!r}")

    @numbers.validator
    def _check_numbers(self, attribute: Any, value: object) -> None:
        if isinstance(value, type) or not isinstance(value, Numbers):
            raise TypeError(f"numbers= expects a policy such as speckey.policies.AutomaticNumbers(), got {value!r}")


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
    return make_callable(jfn, fn, cache.vary, cache.numbers)


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


def table_of(jfn: Any) -> Table:
    table = getattr(jfn, "_speckey_table", None)
    if table is None:
        raise TypeError(f"expected a callable compiled with cache=SpecKeyCache(), got {jfn!r}")
    return table


def entries(jfn: Any) -> tuple[Entry, ...]:
    """The entries of a compiled callable, oldest first.

    Raises:
        TypeError: ``jfn`` was not compiled with a ``SpecKeyCache``.
    """
    return tuple(table_of(jfn).entries)
