"""All contact with thunder's internals: watch a tracing, compile an entry, run one.

The patches below are put in place once, at import, and do nothing unless a speckey tracing is going
on in the current context.  They make every read of a symbolic number's concrete value a fact, unless
the reader is known to compute with it only: an unknown reader costs an entry, never a wrong result.
Knows nothing of tables or of how a call is looked up.
"""

from __future__ import annotations

import ast
import contextlib
import collections
import copy
import functools
import inspect
import itertools
import keyword
import math
import operator
import os
import sys
import threading
import weakref
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dis import Instruction
from numbers import Number
from types import (
    BuiltinFunctionType,
    BuiltinMethodType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MethodDescriptorType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, Protocol

import attrs
import torch

from speckey import from_sympy, symbols
from speckey.guards import HEAP_TYPE, Box, Path, is_library
from speckey.recorder import Recorder
from speckey.symbols import Expr, Unsupported, Value
from speckey.thunder_import import thunder
from speckey.torch_private import FakeSizes
from speckey.withheld import ValueWithheld, holds_withheld, is_withheld, withhold

from thunder.core import (
    baseutils,
    dtypes,
    interpreter,
    jit_ext,
    langctxs,
    prims,
    proxies,
    symbol,
    trace_interpreter,
    transform_common,
    transforms,
    update_aliases,
    utils,
)  # isort: skip
from thunder.common import CompileStats
from thunder.core.compile_data import compile_data_and_stats, get_compile_data
from thunder.core.interpreter import ProvenanceRecord, PseudoInst, WrappedValue
from thunder.core.options import CACHE_OPTIONS
from thunder.core.proxies import AnyProxy, NumberProxy, Proxy, TensorProxy, pytype
from thunder.core.trace import _tracectx, get_tracectx
from thunder.executors.torch_autograd import connect_to_autograd

__all__ = [
    "OUT_OF_MEMORY",
    "Program",
    "Tracing",
    "attach_backward",
    "bare",
    "cache_option",
    "cause_of",
    "compile_program",
    "copied_state",
    "current_trace",
    "epilogue_for",
    "follow",
    "force_graph_code",
    "is_own_submodule",
    "list_entry",
    "name_cache_option",
    "no_grad_sync",
    "original_add_transform",
    "original_compile",
    "original_jit",
    "parameters_of",
    "read_prologue",
    "recipe_with_options",
    "replace_entry_points",
    "replace_forward",
    "replace_part",
    "run_prologue",
    "shared",
    "take_over",
    "taken_from",
    "unlist_entry",
    "writes_attributes",
]


# -- one tracing -----------------------------------------------------------------------------------


class Unsafe(Exception):
    """The symbolic tracing took a way that the program would not have taken with plain numbers."""


def cause_of(error: BaseException) -> BaseException:
    """What thunder's interpreter wraps when a function that it does not interpret raises."""
    wraps = isinstance(error, interpreter.InterpreterError) and error.__cause__ is not None
    return error.__cause__ if wraps else error


@attrs.define(eq=False)
class Tracing:
    """What the hooks need to know while one call is traced and compiled."""

    recorder: Recorder
    symbolic: bool  # False: sizes are plain numbers, only reads from outside are recorded
    tensors: Mapping[Path, int]  # where the tensors whose sizes may be free are found -> their position
    free: frozenset[tuple[int, int]]  # (tensor, dimension) of the sizes that are
    numbers: Mapping[Path, int]  # where the numbers that are free are found -> their position
    structured: frozenset[Path]  # what the signature covers
    identified: frozenset[Path]  # what it tells apart by identity, weakly: a guard would keep it alive
    values: list[torch.Tensor]
    silent: int = 0  # > 0 while a known reader computes
    transforming: bool = False  # the program is traced, and is being transformed for execution
    exceptions: list[str] = attrs.field(factory=list)
    raised: list[BaseException] = attrs.field(factory=list)  # by a ``raise`` of the program
    fakes: list[FakeSizes] = attrs.field(factory=list)  # given to fake kernels whose assumptions are not facts yet
    plain_fakes: bool = False  # fake kernels get plain sizes

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        self.silent += 1
        try:
            yield
        finally:
            self.silent -= 1


_tracing: ContextVar[Tracing | None] = ContextVar("speckey_tracing", default=None)


@contextlib.contextmanager
def _watch(tracing: Tracing) -> Iterator[None]:
    token = _tracing.set(tracing)
    try:
        yield
    finally:
        _tracing.reset(token)


def _symbolic_tracing() -> Tracing | None:
    tracing = _tracing.get()
    return tracing if tracing is not None and tracing.symbolic and not tracing.silent else None


# -- the user's line -------------------------------------------------------------------------------

# Of speckey itself only this file is interpreted, apart from the demo, whose lines are a program's.
_LIBRARY_ROOTS = (
    *(os.path.dirname(os.path.abspath(library.__file__)) + os.sep for library in (thunder, torch)),
    os.path.abspath(__file__),
)
_STANDARD_LIBRARY = sysconfig.get_path("stdlib") + os.sep
_SITE_PACKAGES = os.path.join(_STANDARD_LIBRARY, "site-packages") + os.sep


@functools.lru_cache(maxsize=4096)
def _users_file(file: str) -> str:
    """Its name without the folders; empty for a file of torch's, thunder's or the standard library."""
    if file.startswith(_LIBRARY_ROOTS) or (file.startswith(_STANDARD_LIBRARY) and not file.startswith(_SITE_PACKAGES)):
        return ""
    return os.path.basename(file)


def _where() -> str:
    """The line of the user's program that is being traced, as ``model.py:12``."""
    ctx = interpreter._interpreterruntimectx.get(None)
    if ctx is not None:
        for frame in reversed(ctx.frame_stack):
            name = _users_file(frame.code.co_filename)
            if name and frame.positions:
                return f"{name}:{frame.positions.lineno}"
    return ""


# -- expressions on number proxies -----------------------------------------------------------------

_EXPR = "_speckey_expr"
_ASKED = "_speckey_asked"  # of the result of a comparison: the comparison as the program has it
_SAID = "_speckey_said"  # of a number that the program computes when it runs: what the tracing was told of it


def _expr(number: object) -> Value | None:
    """The expression of a number or number proxy; None when its value is not known while tracing."""
    if isinstance(number, NumberProxy):
        expr = number.__dict__.get(_EXPR)
        return number.__dict__.get("value") if expr is None else expr
    return number if isinstance(number, (int, float)) else None


def _is_symbolic(number: object) -> bool:
    return isinstance(number, NumberProxy) and isinstance(number.__dict__.get(_EXPR), Expr)


def _is_known(number: object) -> bool:
    """A number proxy whose value is there to be read, at the price of a fact if it is symbolic."""
    return isinstance(number, NumberProxy) and number.__dict__.get("value") is not None


def _is_said(number: object) -> bool:
    """A number that an operator computes when the program runs, and that the tracing was told something of."""
    return isinstance(number, NumberProxy) and _SAID in number.__dict__


def _concrete(value: object) -> object:
    """The plain number behind a proxy; reading it is a fact."""
    return value.value if isinstance(value, NumberProxy) else value


_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque, slice)


def _items_of(container: Any) -> Iterator[object]:
    if isinstance(container, slice):
        return iter((container.start, container.stop, container.step))
    return itertools.chain.from_iterable(container.items()) if isinstance(container, dict) else iter(container)


def _holds_number(value: object) -> bool:
    return _is_known(value) or (isinstance(value, _CONTAINERS) and any(map(_is_known, _inside(value))))


def _inside(container: Any) -> Iterator[object]:
    """What a container holds at any depth."""
    waiting, seen = [container], {id(container)}
    while waiting:
        for item in _items_of(waiting.pop()):
            if not isinstance(item, _CONTAINERS):
                yield item
            elif id(item) not in seen:
                seen.add(id(item))
                waiting.append(item)


class _Plain:
    """Arguments for a function written in C: plain numbers in place of proxies; reading them is a fact.

    Containers that hold proxies are copied.  A function that changes or returns such a copy does not do
    what it would have done to the program's own container.
    """

    def __init__(self) -> None:
        self.copies: list[tuple[Any, list]] = []

    def __call__(self, value: Any) -> Any:
        if isinstance(value, NumberProxy):
            return value.value
        if not isinstance(value, _CONTAINERS) or not _holds_number(value):
            return value
        if any(item is value for item, _ in self.copies):
            raise Unsafe("a container of sizes that holds itself is given to a function")
        self.copies.append((value, list(_items_of(value))))
        kind = type(value)
        if kind is dict:
            copy = {self(k): self(v) for k, v in value.items()}
        elif kind in (tuple, list, set, frozenset, torch.Size):
            copy = kind(map(self, value))
        elif kind is slice:
            copy = slice(*map(self, _items_of(value)))
        elif issubclass(kind, tuple) and hasattr(kind, "_make"):
            copy = kind._make(map(self, value))
        else:
            raise Unsafe(f"a {kind.__name__} of sizes is given to a function")
        self.copies.append((copy, list(_items_of(copy))))
        return copy

    def call(self, fn: Callable, args: Iterable, kwargs: Mapping[str, Any]) -> Any:
        result = fn(*map(self, args), **{name: self(value) for name, value in kwargs.items()})
        for container, before in self.copies:
            after = list(_items_of(container))
            if container is result or len(after) != len(before) or any(map(operator.is_not, after, before)):
                raise Unsafe(f"{getattr(fn, '__name__', 'a function')} changes or returns a container of sizes")
        return result


def _code_of(function: Callable, *nested: str) -> CodeType:
    code = function.__code__
    for name in nested:
        code = next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name)
    return code


# Readers of a symbolic number's concrete value that compute with it, or do not let it out.
# Everyone else decides: what it read becomes a fact.
_COMPUTING: dict[CodeType, str] = {
    _code_of(NumberProxy.known_value): "asks whether there is a value, not which",
    _code_of(NumberProxy.make_static_constrained): "asks whether there is a value, not which",
    _code_of(transform_common.remove_duplicate_number_proxies, "keep_or_swap"): (
        "puts the value in the place of an output that is printed as '_' and not used"
    ),
}
# Readers whose own reading means nothing; their caller's does.
_TRUTH = _code_of(NumberProxy.__bool__)
_HASH = _code_of(NumberProxy.__hash__)
# A number is looked up in a set that holds no numbers: the answer is False whatever its value.
_HASHING: dict[CodeType, str] = {
    _code_of(baseutils.is_base_printable_type): "a table of types",
    _code_of(baseutils.is_base_printable_literal): "a table of dtypes and devices",
}


# math.isfinite(n): an integer is finite, whatever its value.
_FLOAT = _code_of(NumberProxy.__float__)
_FINITE: dict[CodeType, str] = {
    _code_of(inspect.unwrap(thunder.clang.arange)): "checks that start, stop and step are finite",
}


class _NumberValue:
    """``NumberProxy.value`` as a data descriptor: reading a symbolic number's value is a fact."""

    def __get__(self, number, owner=None):
        if number is None:
            return self
        try:
            value = number.__dict__["value"]
        except KeyError:
            raise AttributeError("value") from None
        tracing = _symbolic_tracing()
        if tracing is None:
            return value
        if value is None:
            return self._said(number, sys._getframe(1).f_code)
        expr = number.__dict__.get(_EXPR)
        if not isinstance(expr, Expr):
            return value
        frame = sys._getframe(1)
        code = frame.f_code
        if code in _COMPUTING or (code is _HASH and frame.f_back.f_code in _HASHING):
            return value
        if code is _FLOAT and expr.kind is int and frame.f_back.f_code in _FINITE:
            return value
        if code is _TRUTH:
            tracing.recorder.truth(expr, value, _where(), number.__dict__.get(_ASKED, ""))
        elif expr.kind is float and symbols.numbers_in(expr):
            raise Unsafe("the value of a float is read")  # 0.0 equals -0.0, and nan nothing: no fact tells them apart
        else:
            tracing.recorder.value(expr, value, _where())
        return value

    @staticmethod
    def _said(number: NumberProxy, code: CodeType) -> object:
        """The value of a number that is computed when the program runs."""
        if not _is_said(number) or code in _COMPUTING:
            return None
        if code is _TRUTH:
            return number.__dict__[_SAID]
        raise Unsafe("the value of a number that an operator computes is read")

    def __set__(self, number, value):
        number.__dict__["value"] = value


def _carry_expression(replace: Callable) -> Callable:
    """``replace`` builds a new proxy of the same number: it keeps what is known of it."""

    @functools.wraps(replace)
    def replace_(self, **changes):
        tracing = _symbolic_tracing()
        if tracing is None:
            return replace(self, **changes)
        with tracing.computing():
            new = replace(self, **changes)
        if "value" not in changes:
            new.__dict__.update({key: self.__dict__[key] for key in (_EXPR, _SAID) if key in self.__dict__})
        return new

    return replace_


def _silently(printer: Callable) -> Callable:
    """``type_string`` writes the comments of a trace, which no one decides by."""

    @functools.wraps(printer)
    def printer_(self):
        tracing = _symbolic_tracing()
        if tracing is None:
            return printer(self)
        with tracing.computing():
            return printer(self)

    return printer_


# -- operations on numbers -------------------------------------------------------------------------


def _c_division(tracing: Tracing, a: Value, b: Value, values: tuple) -> Value:
    """thunder's ``prims.div``: true division of floats, truncating division of integers."""
    tracing.recorder.nonzero(b, values[1], _where())
    if symbols.kind_of(a) is float or symbols.kind_of(b) is float:
        return symbols.truediv(a, b)
    if symbols.bounds(a)[0] >= 0 and symbols.bounds(b)[0] >= 0:
        return symbols.floordiv(a, b)
    raise Unsupported("truncating division of numbers that may be negative")


def _checked(build: Callable[[Value, Value], Value]) -> Callable:
    """Division and remainder raise for 0, and a program may catch that: whether it is 0 is a fact."""

    def build_(tracing: Tracing, a: Value, b: Value, values: tuple) -> Value:
        tracing.recorder.nonzero(b, values[1], _where())
        return build(a, b)

    return build_


def _plain(build: Callable[..., Value]) -> Callable:
    return lambda tracing, *args: build(*args[:-1])


def _convert(tracing: Tracing, a: Value, kind: object, values: tuple) -> Value:
    try:
        return {int: symbols.to_int, float: symbols.to_float, bool: symbols.to_bool}[kind](a)
    except (KeyError, TypeError):
        raise Unsupported("conversion") from None


def _power(tracing: Tracing, a: Value, b: Value, values: tuple) -> Value:
    if isinstance(b, Expr):
        raise Unsupported("power")
    return symbols.power(a, b)


def _invert(a: Value) -> Value:
    # ~n is -n - 1, also for a bool; prims.bitwise_not of a bool is something else in thunder's torch
    # language, so that it stays a fact about the value.
    if symbols.kind_of(a) is not int:
        raise Unsupported("bitwise_not")
    return symbols.sub(symbols.neg(a), 1)


# Prims whose result on numbers has an exact word in the expression language.  Of any other prim the
# arguments' values become facts, because its meta function reads them.
_P = prims.PrimIDs
_NUMBER_OPERATIONS: dict[Any, Callable[..., Value]] = {
    _P.ADD: _plain(symbols.add),
    _P.SUB: _plain(symbols.sub),
    _P.MUL: _plain(symbols.mul),
    _P.NEG: _plain(symbols.neg),
    _P.DIV: _c_division,
    _P.PY_FLOORDIV: _checked(symbols.floordiv),
    _P.REMAINDER: _checked(symbols.mod),
    _P.POW: _power,
    _P.EQ: _plain(symbols.eq),
    _P.NE: _plain(symbols.ne),
    _P.LT: _plain(symbols.lt),
    _P.LE: _plain(symbols.le),
    _P.GT: _plain(symbols.gt),
    _P.GE: _plain(symbols.ge),
    _P.BITWISE_AND: _plain(symbols.and_),
    _P.BITWISE_OR: _plain(symbols.or_),
    _P.BITWISE_XOR: _plain(symbols.xor),
    _P.BITWISE_NOT: _plain(_invert),
    _P.ABS: _plain(symbols.absolute),
    _P.PY_ABS: _plain(symbols.absolute),
    _P.SIGNBIT: _plain(lambda a: symbols.lt(a, 0)),
    _P.CEIL: _plain(functools.partial(symbols.rounded, "ceil")),
    _P.FLOOR: _plain(functools.partial(symbols.rounded, "floor")),
    _P.TRUNC: _plain(functools.partial(symbols.rounded, "trunc")),
    _P.CONVERT_ELEMENT_TYPE: _convert,
}

_COMPARISONS = {_P.EQ: "==", _P.NE: "!=", _P.LT: "<", _P.LE: "<=", _P.GT: ">", _P.GE: ">="}

_symbol_call = symbol.Symbol.__call__


def _call_symbol(self, *args, **kwargs):
    """``Symbol.__call__``, giving the number that it returns its expression."""
    tracing = _symbolic_tracing()
    if tracing is None:
        return _symbol_call(self, *args, **kwargs)
    if self.id == _ARANGE and kwargs.get("dtype") is None:
        # thunder looks for floats among its arguments, and does not know those with a proxy.
        numbers = (*args, *(kwargs[name] for name in ("start", "end", "step") if name in kwargs))
        if any(_is_symbolic(n) and symbols.kind_of(_expr(n)) is float for n in numbers):
            kwargs = {**kwargs, "dtype": torch.get_default_dtype()}
    if self.id == _TENSOR and args:
        args = (_tensor_data(*args, **kwargs), *args[1:])
        if isinstance(args[0], TensorProxy):
            return args[0]
    build = _NUMBER_OPERATIONS.get(self.id)
    if build is None or kwargs or not any(_is_symbolic(a) for a in args):
        return _constant(tracing, self, args, _call_with_fakes(tracing, self, args, kwargs))
    converts = self.id is _P.CONVERT_ELEMENT_TYPE
    exprs = [a if converts and i else _expr(a) for i, a in enumerate(args)]
    if any(e is None for e in exprs):
        return _constant(tracing, self, args, _symbol_call(self, *args, **kwargs))
    try:
        with tracing.computing():
            values = tuple(_concrete(a) for a in args)
        expr = build(tracing, *exprs, values)
    except Unsupported:
        return _constant(tracing, self, args, _symbol_call(self, *args, **kwargs))
    with tracing.computing():
        result = _symbol_call(self, *args, **kwargs)
    if not isinstance(result, NumberProxy):
        raise Unsafe(f"{self.name} of a symbolic number is not a number")
    if type(result.__dict__["value"]) is not symbols.kind_of(expr):
        raise Unsafe(f"{self.name} gave a {type(result.__dict__['value']).__name__}")
    result.__dict__[_EXPR] = expr
    if self.id in _COMPARISONS:
        result.__dict__[_ASKED] = f" {_COMPARISONS[self.id]} ".join(map(str, exprs))
    return result


_TENSOR, _ARANGE = thunder.torch.tensor.id, thunder.torch.arange.id
_MOST_STACKED = 64  # numbers in a call of torch.tensor; those of more are constant


def _tensor_data(data: Any, *, dtype: Any = None, device: Any = None, **options: Any) -> Any:
    """``torch.tensor`` of symbolic numbers, which thunder refuses: the tensor, or the data with plain numbers."""
    numbers = list(_leaves(data))
    if not any(_is_symbolic(n) for n in numbers):
        return data
    types = [pytype(n) if isinstance(n, (bool, int, float, NumberProxy)) else None for n in numbers]
    if any(options.values()) or len(numbers) > _MOST_STACKED or None in types:
        return _Plain()(data)
    inferred = next(t for t in (float, int, bool) if t in types)
    if dtype is None:
        if inferred is float and isinstance(data, (list, tuple)) and torch.get_default_dtype() != torch.float32:
            return _Plain()(data)  # torch, not thunder, decides when the program runs
        return _stacked(data, {"dtype": dtypes.numbertype_to_dtype(inferred), "device": device})
    # (thunder takes a dtype that the numbers do not fit for one number, and refuses it for several)
    shape = _shape_of(data)
    if shape is None or not utils.can_safe_cast_number_to(inferred(0), dtypes.to_dtype(dtype)):
        return _Plain()(data)
    if not shape:
        return thunder.torch.full((), data, dtype=dtype, device=device)
    # Not of scalars, which would give way to other dtypes in type promotion.
    parts = [thunder.torch.full((1,), number, dtype=dtype, device=device) for number in numbers]
    return thunder.torch.reshape(thunder.torch.cat(parts), shape)


def _shape_of(data: Any) -> tuple[int, ...] | None:
    """The sizes of nested lists of numbers; None where they differ."""
    if not isinstance(data, (list, tuple)):
        return ()
    inner = {_shape_of(item) for item in data}
    return None if len(inner) != 1 or None in inner else (len(data), *inner.pop())


def _leaves(data: Any) -> Iterator[Any]:
    if isinstance(data, (list, tuple)):
        for item in data:
            yield from _leaves(item)
    else:
        yield data


def _stacked(data: Any, options: dict) -> TensorProxy:
    if isinstance(data, (list, tuple)):
        return thunder.torch.stack([_stacked(item, options) for item in data])
    return thunder.torch.full((), data, **options)


def _call_with_fakes(tracing: Tracing, sym: Any, args: tuple, kwargs: dict) -> Any:
    """Call a symbol whose meta function may be torch's kernel for fake tensors.

    Those run on torch's symbolic sizes, and what they assume of them becomes facts; where they cannot,
    or where it has no word, on plain sizes, whose values are facts.
    """
    before, scopes = len(tracing.fakes), list(get_tracectx().scopes)
    try:
        result = _symbol_call(sym, *args, **kwargs)
        if len(tracing.fakes) > before:
            assumed = [
                from_sympy.value_of(relation, fakes.names)
                for fakes in tracing.fakes[before:]
                for relation in fakes.assumed()
            ]
            for relation in assumed:
                tracing.recorder.truth(relation, True, _where())
        return result
    except Exception:
        if len(tracing.fakes) == before:
            raise
        get_tracectx().scopes[:] = scopes
        tracing.plain_fakes = True
        try:
            return _symbol_call(sym, *args, **kwargs)
        finally:
            tracing.plain_fakes = False
    finally:
        del tracing.fakes[before:]


_fake_argument = thunder.torch._get_fake_arg
_from_fake = thunder.torch._fake_type_to_thunder


def _symbolic_fake_argument(value: Any) -> Any:
    tracing = _symbolic_tracing()
    if tracing is None or tracing.plain_fakes:
        return _fake_argument(value)
    symbolic = [value] if isinstance(value, NumberProxy) else getattr(value, "_shape", ())
    if not any(_is_symbolic(n) and symbols.kind_of(_expr(n)) is int for n in symbolic):
        return _fake_argument(value)
    sizes = FakeSizes.current()
    if sizes is None:
        return _fake_argument(value)
    if all(s is not sizes for s in tracing.fakes):
        tracing.fakes.append(sizes)
    if isinstance(value, NumberProxy):
        return _fake_number(tracing, sizes, value)
    return torch.empty(
        [_fake_number(tracing, sizes, n) for n in symbolic],
        dtype=thunder.dtypes.to_torch_dtype(value.dtype),
        requires_grad=value.requires_grad,
        device=thunder.devices.to_torch_device(value.device),
    )


def _fake_number(tracing: Tracing, sizes: FakeSizes, number: Any) -> Any:
    if not _is_symbolic(number) or symbols.kind_of(_expr(number)) is not int:
        return _concrete(number)
    expr = tracing.recorder.simplify(_expr(number))
    if not isinstance(expr, Expr):
        return expr
    return sizes.size(expr, number.__dict__["value"], *tracing.recorder.bounds(expr))


def _thunder_of_fake(value: Any) -> Any:
    tracing = _symbolic_tracing()
    if tracing is None or tracing.plain_fakes:
        return _from_fake(value)
    if isinstance(value, torch.SymInt):
        return _number_of_fake(tracing, value)
    if isinstance(value, torch.Tensor) and any(isinstance(n, torch.SymInt) for n in value.shape):
        return TensorProxy(
            shape=tuple(_number_of_fake(tracing, n) for n in value.shape),
            device=thunder.devices.to_device(value.device),
            dtype=thunder.dtypes.to_dtype(value.dtype),
            requires_grad=value.requires_grad,
        )
    return _from_fake(value)


def _number_of_fake(tracing: Tracing, number: Any) -> Any:
    """The trace has no name for it yet: it gets one where the program asks for the size."""
    if not isinstance(number, torch.SymInt):
        return number
    sizes = FakeSizes.of(number)
    expr = tracing.recorder.simplify(from_sympy.value_of(sizes.term(number), sizes.names))
    if not isinstance(expr, Expr):
        return expr
    proxy = proxies.IntegerProxy(value=sizes.hint(number))
    proxy.__dict__[_EXPR] = expr
    return proxy


def _constant(tracing: Tracing, sym: Any, args: tuple, result: object) -> object:
    """A number without an expression was computed from values that are facts: the program gets it plain.

    Transforms look for the proxy that they know from the trace.  An operator that is not thunder's own (torch's
    ``is_contiguous``, one of an executor) computes its numbers when the program runs, from strides and data too:
    what its meta function said of them decides branches, as without speckey, and is not known otherwise, as with
    ``item``.
    """
    if sym.is_prim and not isinstance(sym.id, _P):
        for number in _inside((result,)):
            if _is_known(number) and not _is_symbolic(number) and all(number is not a for a in args):
                number.__dict__[_SAID] = number.__dict__["value"]
                number.__dict__["value"] = None
        return result
    if _is_known(result) and not _is_symbolic(result) and not tracing.transforming:
        return result.__dict__["value"]
    return result


_binary_helper = NumberProxy._elementwise_binary_helper
_unary_helper = NumberProxy._elementwise_unary_helper

_BINARY_METHODS = frozenset(
    [
        "add",
        "sub",
        "mul",
        "floor_divide",
        "mod",
        "true_divide",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
    ]
)
_UNARY_METHODS = frozenset(["abs", "neg"])
_AS_PYTHON_HAS_IT = {"floor_divide": prims.py_floordiv, "mod": prims.remainder}


def _elementwise_binary(a, b, name, fn, type_promotion_kind=None):
    """Operators of number proxies, without reading their values first.

    ``//`` and ``%`` of integers become one prim with Python's meaning instead of thunder's dozen.
    What has no exact expression is computed from the concrete numbers, which makes them facts.
    """
    tracing = _symbolic_tracing()
    if tracing is None or get_tracectx() is None:
        return _binary_helper(a, b, name, fn, type_promotion_kind)
    if not (_is_symbolic(a) or _is_symbolic(b)):
        if all(_is_known(n) or type(n) in (bool, int, float, complex) for n in (a, b)):
            return fn(_concrete(a), _concrete(b))
        return _binary_helper(a, b, name, fn, type_promotion_kind)
    if isinstance(a, TensorProxy) or isinstance(b, TensorProxy):
        return langctxs.resolve_method(name, a, b)(a, b)
    baseutils.check_type(b, (Number, NumberProxy))
    ea, eb = _expr(a), _expr(b)
    if ea is not None and eb is not None:
        known = _already_known(tracing, name, (a, b), (ea, eb))
        if known is not None:
            return known
        integers = all(symbols.kind_of(e) in (int, bool) for e in (ea, eb))
        if name in _AS_PYTHON_HAS_IT and integers:
            return _AS_PYTHON_HAS_IT[name](_as_int(a), _as_int(b))
        if name == "pow" and integers and type(b) is int and 0 <= b <= 8:
            return prims.pow(_as_int(a), b)
        if name == "true_divide" and integers and all(map(symbols.is_exact_as_float, (ea, eb))):
            return _quotient(tracing, a, b)
        if name in _BINARY_METHODS and (method := langctxs.resolve_method(name, a, b)) is not None:
            return method(a, b)
    return fn(_concrete(a), _concrete(b))


_QUOTIENT = "_speckey_quotient"


def _quotient(tracing: Tracing, a, b):
    """``a / b`` of integers is a float, which thunder's division of symbolic integers is not."""
    result = prims.div(_as_float(a), _as_float(b))
    if isinstance(result, NumberProxy):
        result.__dict__[_QUOTIENT] = (a, b)
    return result


def _as_float(number):
    return prims.convert_element_type(number, float) if isinstance(number, NumberProxy) else float(number)


def _rounded(number: NumberProxy, name: str):
    """``math.ceil(a / b)`` and the like as a floor division, or None.

    thunder has no executor for ``ceil`` of a number; integers below 2**52 give the same result.
    """
    a, b = number.__dict__.get(_QUOTIENT, (None, None))
    if a is None or not isinstance(b, int) or b <= 0 or not symbols.is_exact_as_float(_expr(a)):
        return None
    a = _as_int(a)
    if name == "ceil":
        return -((-a) // b)
    if name == "floor" or symbols.bounds(_expr(a))[0] >= 0:
        return a // b
    return None


_BY_METHOD: dict[str, Callable[[Value, Value], Value]] = {
    "add": symbols.add,
    "sub": symbols.sub,
    "mul": symbols.mul,
    "floor_divide": symbols.floordiv,
    "mod": symbols.mod,
    "eq": symbols.eq,
    "ne": symbols.ne,
    "lt": symbols.lt,
    "le": symbols.le,
    "gt": symbols.gt,
    "ge": symbols.ge,
}


def _already_known(tracing: Tracing, name: str, numbers: tuple, exprs: tuple[Value, Value]) -> object | None:
    """The result, when the facts so far make it a constant or one of the operands.

    Most of what thunder asks (is ``i0 == i0``, is ``i0 == 1`` for the tenth time) ends here, and costs
    neither a line in the trace nor a fact.
    """
    build = _BY_METHOD.get(name)
    if build is None or any(symbols.kind_of(e) is not int for e in exprs):
        return None
    if build in (symbols.floordiv, symbols.mod):
        with tracing.computing():
            divisor = _concrete(numbers[1])
        tracing.recorder.nonzero(exprs[1], divisor, _where())
        if divisor == 0:
            return None
    result = tracing.recorder.simplify(build(*map(tracing.recorder.simplify, exprs)))
    if isinstance(result, bool):
        return result
    if not isinstance(result, Expr):
        return result
    for number, expr in zip(numbers, exprs, strict=True):
        if result == expr:
            return number
    return None


def _as_int(number):
    expr = _expr(number)
    return prims.convert_element_type(number, int) if symbols.kind_of(expr) is bool else number


def _elementwise_unary(a, name, fn, type_promotion_kind=None):
    tracing = _symbolic_tracing()
    if tracing is None or get_tracectx() is None or not _is_known(a):
        return _unary_helper(a, name, fn, type_promotion_kind)
    if not _is_symbolic(a):
        return fn(_concrete(a))
    if name in ("ceil", "floor", "trunc"):
        if symbols.kind_of(_expr(a)) is int:
            return a
        rounded = _rounded(a, name)
        return fn(_concrete(a)) if rounded is None else rounded
    if name in _UNARY_METHODS and symbols.kind_of(_expr(a)) is not bool:
        method = langctxs.resolve_method(name, a)
        if method is not None:
            return method(a)
    return fn(_concrete(a))


def _round(self, ndigits=None):
    """``round(n, 2)``, for which thunder has no parameter."""
    if ndigits is None:
        return _number_round(self)
    if _symbolic_tracing() is None or not _is_known(self):
        return _number_round(self, ndigits)
    return round(_concrete(self), _concrete(ndigits))


_number_round = NumberProxy.__round__


def _number_text(self) -> str:
    if _symbolic_tracing() is not None and _is_known(self):
        return str(_concrete(self))
    return repr(self)


def _number_format(self, spec: str) -> str:
    if _symbolic_tracing() is not None and _is_known(self):
        return format(_concrete(self), spec)
    return object.__format__(self, spec)


def _number_repr(original: Callable) -> Callable:
    """A program that prints a size must see the number, and what it sees is a fact."""

    @functools.wraps(original)
    def repr_(self):
        if _symbolic_tracing() is not None and _is_known(self):
            return repr(_concrete(self))
        return original(self)

    return repr_


def _number_attribute(self, name: str):
    """``n.bit_length`` and whatever else numbers have and number proxies lack."""
    if _symbolic_tracing() is not None and _is_known(self) and hasattr(self.python_type, name):
        return getattr(_concrete(self), name)
    raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")


class _Numel(int):
    """thunder has it as a property, torch as a method."""

    def __call__(self) -> int:
        return int(self)


_tensor_attribute = TensorProxy.__getattr__


def _tensor_attribute_(self, name: str):
    """``numel`` where nothing is traced: the passes of data parallel training sort by it.

    Elsewhere thunder multiplies the sizes that the tensor was made with, which may have been computed
    within the operator that made it: the trace knows those by no name.
    """
    if name == "numel" and _symbolic_tracing() is not None and get_tracectx() is None:
        return _Numel(math.prod(map(_concrete, self._shape)))
    found = _tensor_attribute(self, name)
    if name == "numel" and inspect.isfunction(found):
        return lambda: functools.reduce(operator.mul, self.shape, 1)
    return found


def _by_value(name: str) -> Callable:
    """An operator that number proxies do not implement, on the concrete numbers."""

    def operate(self, *others):
        if _symbolic_tracing() is None:
            raise NotImplementedError
        return getattr(_concrete(self), name)(*(_concrete(o) for o in others))

    operate.__name__ = operate.__qualname__ = name
    return operate


# -- values that a program reads -------------------------------------------------------------------


def _path(provenance: ProvenanceRecord) -> Path | None:
    """How to get at a value again, from where thunder's interpreter says that it came from."""
    cached = provenance.__dict__.get("_speckey_path", 0)
    if cached != 0:
        return cached
    path = provenance.__dict__["_speckey_path"] = _compute_path(provenance)
    return path


def _compute_path(provenance: ProvenanceRecord) -> Path | None:
    inst, inputs = provenance.inst, provenance.inputs
    if inst is PseudoInst.INPUT_FN:
        return ("fn",)
    if inst is PseudoInst.INPUT_ARGS:
        return ("args",)
    if inst is PseudoInst.INPUT_KWARGS:
        return ("kwargs",)
    if inst is PseudoInst.CONSTANT:
        return ("object", Box(provenance.value))
    if inst is PseudoInst.LOAD_ATTR:
        return _step("attr", inputs[0], inputs[1])
    if inst is PseudoInst.BINARY_SUBSCR:
        return _step("item", inputs[0], inputs[1])
    if inst is PseudoInst.OPAQUE and inputs[0].inst is PseudoInst.CONSTANT:
        function, arguments = inputs[0].value, inputs[1].inputs
        if getattr(function, "__name__", "") == "__getitem__" and len(arguments) == 2:
            return _step("item", arguments[1], arguments[0])
        if function == GetSetDescriptorType.__get__ and len(arguments) == 3:
            name = ProvenanceRecord(PseudoInst.CONSTANT, inputs=[], value=arguments[2].value.__name__)
            return _step("attr", arguments[1], name)
    return None


def _step(kind: str, parent: ProvenanceRecord, key: ProvenanceRecord) -> Path | None:
    if key.inst is not PseudoInst.CONSTANT or not isinstance(key.value, (str, int, type(None))):
        return None
    above = _path(parent)
    return None if above is None else (kind, above, key.value)


def _read_path(obj: WrappedValue, kind: str, key: object) -> Path | None:
    """The path of ``obj.key`` or ``obj[key]``, or None where no guard is needed.

    None for what the signature covers, and for objects that the program itself made while it was traced.
    """
    if isinstance(obj.value, Proxy) and not isinstance(obj.value, AnyProxy):
        return None
    if not isinstance(key, (str, int, type(None))):
        return None
    above = _path(obj.provenance)
    if above is None or _is_thunders_own(above):
        if jit_ext.is_created_during_tracing(obj.provenance) or obj.provenance.inst in _MADE_BY_PROGRAM:
            return None  # what its class has is guarded by _read_of_class
        if not hasattr(obj.value, "__dict__") or _is_thunders_own(("object", Box(obj.value))):
            return None  # a plain container or number from an opaque function, whose source is guarded
        above = ("object", Box(obj.value))
    if above[0] == "object" and isinstance(above[1].value, (tuple, str, frozenset)):
        return None  # a constant of the program
    path = (kind, above, key)
    if kind == "item" and above[0] == "attr" and above[2] == "__dict__" and isinstance(key, str):
        source = obj.provenance.inputs[0] if obj.provenance.inst is PseudoInst.LOAD_ATTR else None
        if source is not None and source.ext_flag & jit_ext.EXT_FLAG_IS_MODULE:
            path = ("attr", above[1], key)  # as thunder's prologue has it; mostly read both ways
    tracing = _tracing.get()
    if tracing is None or path in tracing.structured or path in tracing.identified:
        return None
    if above in tracing.structured and (kind == "item" or not has_python_class(obj.value)):
        return None
    return path


def has_python_class(value: object) -> bool:
    """Whether its class is one whose attributes can be exchanged, and not a library's."""
    kind = type(value)
    return bool(kind.__flags__ & HEAP_TYPE) and not is_library(kind)


def _read_of_class(tracing: Tracing, obj: WrappedValue, name: str) -> None:
    """An attribute that an object made by the program, or ``super()``, gets from a class."""
    value = obj.value
    if isinstance(value, super):
        mro = type(value.__self__).__mro__ if not isinstance(value.__self__, type) else value.__self__.__mro__
        classes = mro[mro.index(value.__thisclass__) + 1 :]
    elif has_python_class(value) and name not in getattr(value, "__dict__", {}):
        classes = type(value).__mro__
    else:
        return
    owner = next((c for c in classes if name in c.__dict__), None)
    if owner is not None and owner.__flags__ & HEAP_TYPE:
        tracing.recorder.read(("attr", ("object", Box(owner)), name), owner, getattr(owner, name), _where)


def _is_thunders_own(path: Path) -> bool:
    """Whether the path starts at one of the functions by which thunder's interpreter works."""
    while path[0] in ("attr", "item"):
        path = path[1]
    return path[0] == "object" and str(getattr(path[1].value, "__module__", "")).startswith("thunder.")


_MADE_BY_PROGRAM = frozenset(
    [PseudoInst.NEW, PseudoInst.BUILD_TUPLE, PseudoInst.BUILD_DICT, PseudoInst.BUILD_NAMEDTUPLE, PseudoInst.SUPER]
)
_wrap_attribute = interpreter.wrap_attribute
_wrap_binary_subscr = interpreter.wrap_binary_subscr
# How thunder's interpreter finds methods; what they read has guards.
_PLUMBING = frozenset(["__getattr__", "__getattribute__", "__call__", "__func__", "__self__", "__class__", "__code__"])


def _is_builtin_method(value: object, owner: object) -> bool:
    """A method of a type written in C, which cannot be exchanged."""
    return isinstance(value, (BuiltinMethodType, MethodWrapperType)) and value.__self__ is owner


def _wrap_attribute_read(plain_result, obj, name):
    tracing = _tracing.get()
    if (
        tracing is not None
        and (name.value not in _PLUMBING or (name.value == "__call__" and has_python_class(obj.value)))
        and not isinstance(plain_result, Proxy)
        and not _is_builtin_method(plain_result, obj.value)
    ):
        path = _read_path(obj, "attr", name.value)
        if path is not None:
            tracing.recorder.read(path, obj.value, plain_result, _where)
        elif isinstance(name.value, str) and not isinstance(obj.value, Proxy):
            _read_of_class(tracing, obj, name.value)
    return _wrap_attribute(plain_result, obj, name)


def _wrap_item_read(uvalue, obj, key):
    tracing = _tracing.get()
    if tracing is not None and not isinstance(uvalue, Proxy):
        path = _read_path(obj, "item", interpreter.unwrap(key))
        if path is not None:
            tracing.recorder.read(path, obj.value, uvalue, _where)
    return _wrap_binary_subscr(uvalue, obj, key)


_dict_contains = interpreter._default_provenance_tracking_lookaside_map[dict.__contains__]


def _contains(mapping, key):
    """Whether an object's own dict has a name, without taking all that is in it for read."""
    tracing = _tracing.get()
    path = None if tracing is None else _path(mapping.provenance)
    if path is None or path[0] != "attr" or path[2] != "__dict__" or type(key.value) is not str:
        return _dict_contains(mapping, key)
    there = key.value in mapping.value
    tracing.recorder.asked(("item", path, key.value), mapping.value, there=there, where=_where)
    return interpreter.wrap(
        there, provenance=ProvenanceRecord(PseudoInst.CONTAINS_OP, inputs=[mapping.provenance, key.provenance])
    )


_globals_lookup = interpreter.globals_lookup


def _look_up_global(globals_dict, name):
    """A name that is not among the globals is a builtin as long as it is not."""
    tracing = _tracing.get()
    names = interpreter.unwrap(globals_dict)
    if tracing is not None and isinstance(globals_dict, WrappedValue) and name.value not in names:
        above = _path(globals_dict.provenance)
        if above is not None:
            tracing.recorder.asked(("item", above, name.value), names, there=False, where=_where)
    return _globals_lookup(globals_dict, name)


def _asked_for_attribute(obj: WrappedValue, name: object) -> None:
    tracing = _tracing.get()
    if tracing is not None and isinstance(name, str) and not name.startswith("__"):
        path = _read_path(obj, "attr", name)
        if path is not None:
            tracing.recorder.asked(path, obj.value, there=hasattr(obj.value, name), where=_where)


_Base = jit_ext.JitCtx


class _RecordingJitCtx(_Base):
    """Decides what is symbolic: sizes of tensor arguments are, everything else is constant."""

    def proxify(self, value):
        tracing = _tracing.get()
        if tracing is None or isinstance(value.value, Proxy) or value.original_value is not value.nothing:
            return super().proxify(value)
        tensor = value.value
        path = _path(value.provenance)
        if isinstance(tensor, torch.Tensor):
            index = tracing.tensors.get(path) if tracing.symbolic and path is not None else None
            if index is not None and tracing.values[index] is tensor:
                return self._with_free_sizes(tracing, value, index)
            if path is not None and path not in tracing.structured:
                tracing.recorder.read_tensor(path, tensor, _where)
        with _constant_values():
            return super().proxify(value)

    def _with_free_sizes(self, tracing: Tracing, value: WrappedValue, index: int) -> Any:
        sizes = value.value.shape
        fixed = [dim for dim in range(len(sizes)) if (index, dim) not in tracing.free]
        for dim in fixed:
            tracing.recorder.value(symbols.size(index, dim), int(sizes[dim]))
        if len(fixed) == len(sizes):
            with _constant_values():
                return super().proxify(value)
        proxy = super().proxify(value)
        for dim, length in enumerate(proxy._shape):
            length.__dict__[_EXPR] = symbols.size(index, dim)
        if fixed:
            proxy._shape = tuple(int(sizes[d]) if d in fixed else length for d, length in enumerate(proxy._shape))
        return proxy


_wrap_callback = jit_ext._general_jit_wrap_callback


def _wrap_withheld(value: WrappedValue) -> Any:
    """thunder's interpreter has met a value: a number that is withheld becomes a symbolic one."""
    if not is_withheld(value.value):
        return _wrap_callback(value)
    tracing, path = _tracing.get(), _path(value.provenance)
    index = None if tracing is None else tracing.numbers.get(path)
    if index is None or not jit_ext.should_register_for_prologue(value.provenance):
        raise ValueWithheld("a number on its way through a function that is not traced")
    number = value.value.withheld_value
    expr = symbols.number(index, type(number))
    if expr.kind is int:
        tracing.recorder.truth(symbols.in_range(expr), True)
    value.provenance.ext_flag |= jit_ext.EXT_FLAG_IS_PROXY_DERIVED | jit_ext.EXT_FLAG_IS_CONSTRAINABLE_INPUT
    proxy = proxies.proxy(number, history=value.provenance)
    proxy.make_constrainable()
    proxy.__dict__[_EXPR] = expr
    value.python_typ = type(number)
    value.register_proxy(proxy)
    return None


@contextlib.contextmanager
def _constant_values() -> Iterator[None]:
    data = get_compile_data()
    before = data.cache_option
    data.cache_option = CACHE_OPTIONS.CONSTANT_VALUES
    try:
        yield
    finally:
        data.cache_option = before


# -- what the interpreter does with symbolic numbers -------------------------------------------------


def _kind_of_proxy(number: NumberProxy) -> type:
    return number.python_type


_lookasides = jit_ext._general_jit_lookaside_map
_isinstance_lookaside = _lookasides[isinstance]
_getattr_lookaside = _lookasides[getattr]
_hasattr_lookaside = _lookasides[hasattr]
_bool_lookaside = _lookasides[bool]
_EXCEPTION_RAISED = interpreter.INTERPRETER_SIGNALS.EXCEPTION_RAISED


def _computed(value: object, function: Callable, *inputs: WrappedValue) -> WrappedValue:
    provenance = ProvenanceRecord(
        PseudoInst.LOOKASIDE, inputs=[interpreter.wrap_const(function).provenance, *(i.provenance for i in inputs)]
    )
    return interpreter.wrap(value, provenance=provenance)


def _program_asks() -> bool:
    """Whether the question comes from the traced program, not from how thunder's interpreter works."""
    frame = interpreter.get_interpreterruntimectx().peek_frame_stack()
    return frame is None or not str(interpreter.unwrap(frame.globals).get("__name__", "")).startswith("thunder.")


def _torch_asks() -> bool:
    """Whether torch's own code is interpreted, which has registries of modules and the like."""
    for frame in reversed(interpreter.get_interpreterruntimectx().frame_stack):
        name = str(interpreter.unwrap(frame.globals).get("__name__", ""))
        if not name.startswith("thunder."):
            return name.startswith("torch.")
    return False


def _isinstance(obj, cls):
    """A symbolic size is an int, as it is with constant values."""
    if _symbolic_tracing() is not None and isinstance(obj.value, NumberProxy):
        classes = interpreter.unwrap(cls)
        if isinstance(classes, (tuple, list)):
            classes = tuple(interpreter.unwrap(c) for c in classes)
        return _computed(
            isinstance(obj.value, classes) or issubclass(obj.value.python_type, classes), isinstance, obj, cls
        )
    return _isinstance_lookaside(obj, cls)


_opcode_handlers = interpreter._default_opcode_handler_map
_is_handler = _opcode_handlers["IS_OP"]


def _is(inst, /, stack, **rest):
    if _symbolic_tracing() is None:
        return _is_handler(inst, stack=stack, **rest)
    b, a = stack.pop(), stack.pop()
    a, b = _plain_operands(a, b)
    stack.append(a is not b if inst.arg == 1 else a is b)
    return None


def _plain_operands(a: object, b: object) -> tuple[object, object]:
    """For ``is``, which numbers answer as objects: the plain ones, where both are numbers."""
    if all(_is_known(n) or type(n) in (bool, int, float) for n in (a, b)):
        return _concrete(a), _concrete(b)
    return a, b


def _type(obj, *more):
    if not more and _symbolic_tracing() is not None and isinstance(obj.value, NumberProxy) and _program_asks():
        return _computed(obj.value.python_type, type, obj)
    return interpreter.default_lookaside(type)(obj, *more)


def _getattr(obj, name, *default):
    if (
        _symbolic_tracing() is not None
        and isinstance(obj.value, NumberProxy)
        and interpreter.unwrap(name) == "__class__"
        and _program_asks()
    ):
        return _computed(obj.value.python_type, type, obj)
    result = _getattr_lookaside(obj, name, *default)
    if _tracing.get() is not None and (result is _EXCEPTION_RAISED or (default and result is default[0])):
        _asked_for_attribute(obj, interpreter.unwrap(name))
    return result


def _hasattr(obj, name):
    if _symbolic_tracing() is not None and isinstance(obj.value, NumberProxy) and _program_asks():
        return _computed(hasattr(obj.value.python_type, interpreter.unwrap(name)), hasattr, obj, name)
    result = _hasattr_lookaside(obj, name)
    if _tracing.get() is not None:
        _asked_for_attribute(obj, interpreter.unwrap(name))
    return result


def _bool(x):
    if _symbolic_tracing() is not None and (_is_symbolic(x.value) or _is_said(x.value)):
        return _computed(bool(x.value), bool, x)
    return _bool_lookaside(x)


def _len(obj):
    # thunder's own asks whether the length is an int, outside of the interpreted program.
    if _symbolic_tracing() is not None and isinstance(obj.value, TensorProxy) and obj.value.ndim:
        return interpreter.interpreter_needs_wrap(lambda t: t.shape[0])(obj)
    return interpreter.default_lookaside(len)(obj)


def _number_type_call(kind: type) -> Callable:
    """``int(n)`` and ``float(n)`` of a symbolic number stay symbolic."""

    def convert(number):
        if number.python_type is kind:
            return number
        if kind is int and number.python_type is float:
            rounded = _rounded(number, "trunc")
            return int(_concrete(number)) if rounded is None else rounded
        return prims.convert_element_type(number, kind)

    return interpreter.interpreter_needs_wrap(jit_ext.record_source_loc_in_symbol_header(convert))


_TO_INT, _TO_FLOAT = _number_type_call(int), _number_type_call(float)
# Opaque functions that see an argument through its operators only, each of which is recorded, or (optree)
# that take containers apart and leave what is in them alone.
_PROTOCOL_MODULES = frozenset(
    ["builtins", "_operator", "operator", "math", "_functools", "itertools", "_collections", "optree._C"]
)
_BY_IDENTITY = (operator.is_, operator.is_not, id)
_general_lookaside = jit_ext.general_jit_lookaside
_INDEXING = (list.__getitem__, tuple.__getitem__)  # thunder's want a plain int


# -- functions written in C that call back, or keep what they are given ---------------------------------


_NOTHING = object()


def _map(function, /, *iterables):  # interpreted
    for values in zip(*iterables):  # noqa: B905  (map stops at the shortest)
        yield function(*values)


def _filter(function, iterable, /):  # interpreted
    for value in iterable:
        if value if function is None else function(value):
            yield value


def _starmap(function, iterable, /):  # interpreted
    for values in iterable:
        yield function(*values)


def _takewhile(predicate, iterable, /):  # interpreted
    for value in iterable:
        if not predicate(value):
            break
        yield value


def _dropwhile(predicate, iterable, /):  # interpreted
    dropping = True
    for value in iterable:
        if dropping and predicate(value):
            continue
        dropping = False
        yield value


def _filterfalse(predicate, iterable, /):  # interpreted
    for value in iterable:
        if not (value if predicate is None else predicate(value)):
            yield value


def _accumulate(iterable, func, *, initial=None):  # interpreted
    total = _NOTHING
    if initial is not None:
        total = initial
        yield total
    for value in iterable:
        total = value if total is _NOTHING else func(total, value)
        yield total


def _order(keys, reverse):
    return sorted(range(len(keys)), key=keys.__getitem__, reverse=reverse)


def _sorted(iterable, /, *, key, reverse=False):  # interpreted
    values = list(iterable)
    keys = []
    for value in values:
        keys.append(key(value))
    return [values[i] for i in _order(keys, reverse)]


def _least(values, key, default, sign):  # interpreted
    best, best_key = default, _NOTHING
    for value in values:
        value_key = key(value)
        if best_key is _NOTHING or (value_key < best_key if sign < 0 else value_key > best_key):
            best, best_key = value, value_key
    if best is _NOTHING:
        raise ValueError("min() or max() of an empty sequence")
    return best


def _min(*values, key, default=_NOTHING):  # interpreted
    return _least(values if len(values) > 1 else values[0], key, default, -1)


def _max(*values, key, default=_NOTHING):  # interpreted
    return _least(values if len(values) > 1 else values[0], key, default, 1)


def _methodcaller(name, /, *args, **kwargs):  # interpreted
    return lambda thing: getattr(thing, name)(*args, **kwargs)


def _vars(thing, /):  # interpreted
    return thing.__dict__


# Python for what C does with a function of the program's, so that the function is traced as well; and for
# what it reads of the program's objects.
_CALLING_BACK: dict[Any, Callable] = {
    vars: _vars,
    map: _map,
    filter: _filter,
    operator.methodcaller: _methodcaller,
    itertools.starmap: _starmap,
    itertools.takewhile: _takewhile,
    itertools.dropwhile: _dropwhile,
    itertools.filterfalse: _filterfalse,
}
_CALLING_BACK_BY_KEY: dict[Any, Callable] = {sorted: _sorted, min: _min, max: _max}

def _empty_list() -> WrappedValue:
    made_by = interpreter.wrap_const(list).provenance
    return interpreter.wrap([], provenance=ProvenanceRecord(PseudoInst.NEW, inputs=[made_by]))


def _new_list(cls, iterable=()):
    """``list.__new__``; thunder's own takes the list for a constant, which might be anyone's."""
    return _empty_list() if cls.value is list else _thunders_new_list(cls, iterable)


_thunders_new_list = interpreter.MutSequenceWrapperMethods.__new__


def _fill_list(self, iterable=()):
    """``list.__init__``, as thunder does it by way of another list, which is also new."""
    if iterable == ():
        iterable = interpreter.wrap_const(())
    items = _empty_list()
    result = interpreter._interpret_call(list.extend, items, iterable)
    if result is _EXCEPTION_RAISED:
        return result
    self.value[:] = items.value[:]
    self.item_wrappers = items.item_wrappers[:]
    return interpreter.wrap_const(None)


# What holds no number, and is not changed by who gets it; a tensor's proxy is as good or bad to keep as with
# thunder's own caches.
_UNCHANGING = (
    *(type(None), bool, int, float, complex, str, bytes, range, type, ModuleType, BuiltinMethodType),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Tensor, TensorProxy),
    *(type(threading.Lock()), type(threading.RLock()), weakref.ReferenceType),
)
_NAMESPACES = (type, ModuleType)  # may be kept anywhere; what is kept in one stays there
_METHODS = (MethodDescriptorType, WrapperDescriptorType)
# Methods that leave their arguments alone, by Python's data model.  Any other may keep what it is given.
_READING = frozenset(
    [
        *("__add__", "__radd__", "__mul__", "__rmul__", "__or__", "__ror__", "__and__", "__rand__", "__sub__"),
        *("__rsub__", "__xor__", "__rxor__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"),
        *("__contains__", "__getitem__", "__getattribute__", "__get__", "__len__", "__iter__", "__reversed__"),
        *("__repr__", "__str__", "__format__", "__hash__", "__bool__", "__index__", "__call__"),
        *("__instancecheck__", "__subclasscheck__", "__enter__", "__exit__"),
        *("__new__", "__delattr__", "__delete__"),
        *("index", "count", "copy", "get", "keys", "values", "items", "union", "intersection", "difference"),
        *("symmetric_difference", "issubset", "issuperset", "isdisjoint", "fromkeys", "__next__"),
    ]
)
# Modules whose functions leave their arguments alone, apart from those in place.
_READING_MODULES = ("builtins", "math", "itertools", "_functools", "time", "optree", "torch")
_IN_PLACE = frozenset(
    ["setitem", "delitem", *(name for name in dir(operator) if name.startswith("i") and f"__{name}__" in dir(operator))]
) - {"is_", "is_not", "index", "indexOf", "inv", "invert", "itemgetter"}
_STORING_EACH = frozenset(["extend", "extendleft", "update", "__iadd__", "__ior__"])
_BY_KEY = frozenset(["__setitem__", "setdefault", "add", "setitem"])


def _may_store(fn: Any) -> bool:
    """Whether a function written in C may put an argument into the first one."""
    if isinstance(fn, _METHODS):
        return fn.__name__ not in _READING and fn not in (object.__init__, type.__init__)  # which keep nothing
    if not isinstance(fn, BuiltinFunctionType) or not isinstance(fn.__self__, (ModuleType, type(None))):
        return False
    module = fn.__module__ or ""
    return fn.__name__ in _IN_PLACE if module == "_operator" else module.split(".")[0] not in _READING_MODULES


def _is_from_outside(provenance: ProvenanceRecord) -> bool:
    """Whether a value is one of the program's caller."""
    while provenance.inst in (PseudoInst.LIST_APPEND, PseudoInst.LIST_EXTEND) and provenance.inputs:
        provenance = provenance.inputs[0]
    path = _path(provenance)
    return path is not None and path[0] != "object" and not _is_thunders_own(path)


def _can_keep(value: object) -> bool:
    """Whether something may be put into it."""
    return isinstance(value, _NAMESPACES) or not isinstance(value, _UNCHANGING)


def _may_be_from_outside(provenance: ProvenanceRecord) -> bool:
    """Whether a value is not known to be made by the program."""
    waiting, seen = [provenance], set()
    while waiting:
        record = waiting.pop()
        if id(record) in seen or record.inst in _MADE_BY_PROGRAM:
            continue
        if isinstance(record.inst, Instruction) and record.inst.opname.startswith(("BUILD_", "MAKE_")):
            continue
        seen.add(id(record))
        if record.inst is PseudoInst.CONSTANT:
            if _can_keep(record.value):
                return True
        elif record.inst is PseudoInst.OPAQUE and record.inputs[0].inst is PseudoInst.CONSTANT:
            if not _makes_new(record.inputs[0].value):
                return True
        elif record.inst in _PASSING_ON and record.inputs:
            waiting += record.inputs[:1]
        else:
            return not _is_thunders_own(_path(record) or ("fn",))
    return False


def _makes_new(fn: Any) -> bool:
    """Whether what a function in C returns is made by it: Python's own classes, and what they have for ``__new__``."""
    fn = getattr(fn, "in_place_of", fn)  # (on plain numbers)
    cls = fn.__self__ if isinstance(fn, BuiltinFunctionType) and fn.__name__ == "__new__" else fn
    return isinstance(cls, type) and cls.__module__ in _MAKERS


_MAKERS = ("builtins", "collections", "itertools", "functools", "types")
_PASSING_ON = frozenset([PseudoInst.LIST_APPEND, PseudoInst.LIST_EXTEND, PseudoInst.LOOKASIDE, PseudoInst.BINARY_ADD])


def _holds_nothing(value: object) -> bool:
    return isinstance(value, _UNCHANGING) or not type(value).__flags__ & _HAVE_GC


_HAVE_GC = 1 << 14  # Py_TPFLAGS_HAVE_GC: objects of the type refer to others


def _keeps_numbers(fn: Any, args: tuple, kwargs: dict) -> bool:
    """Whether a call would leave numbers' proxies in what outlives the tracing; plain numbers may go there."""
    if fn.__name__ == "__set__":  # a descriptor's: it is the object that keeps
        args = args[1:]
    values = [value for value in (*args[1:], *kwargs.values()) if not _holds_nothing(value.value)]
    place = args[0]
    if not values or isinstance(place.value, (tuple, frozenset)) or not _can_keep(place.value):
        return False
    if not _may_be_from_outside(place.provenance):
        return False
    for i, value in enumerate(values):
        if _is_known(value.value) or _is_from_outside(value.provenance):
            continue
        if type(value.value) is tuple and i == 0 and fn.__name__ in _BY_KEY:
            items = list(_inside(value.value))
        elif type(value.value) in (list, tuple, dict, set) and fn.__name__ in _STORING_EACH:
            items = list(_items_of(value.value))
        else:
            items = [value.value]
        # Else a container that the program has made, or what holds one: numbers may get there at any time.
        if not all(_holds_nothing(item) or _is_known(item) for item in items) and not _torch_asks():
            raise Unsafe("what the program has made is kept in a container of its caller")
    return any(_holds_number(value.value) for value in values)


def _to_keep(value: WrappedValue) -> WrappedValue:
    plain = _Plain()(value.value)
    return value if plain is value.value else interpreter.wrap_const(plain)


def _kept_by_caller(value: WrappedValue, place: ProvenanceRecord) -> WrappedValue | None:
    """What to store instead of a value: numbers are plain in what is the caller's; None if they cannot be."""
    if not _may_be_from_outside(place):
        return value
    if _is_known(value.value):
        return _to_keep(value)
    return value if _is_from_outside(value.provenance) else None


def _setattr(obj, name, value):
    """``setattr``: of an object with attributes of its own thunder keeps track, not of classes, modules and slots."""
    has_own = hasattr(obj.value, "__dict__") and not isinstance(obj.value, _NAMESPACES)
    if not has_own and _symbolic_tracing() is not None and not isinstance(value.value, _UNCHANGING):
        value = _kept_by_caller(value, obj.provenance)
        if value is None:
            return _give_up("what the program has made is kept in an attribute of its caller's")
    return _setattr_lookaside(obj, name, value)


_setattr_lookaside = _lookasides[setattr]
_store_deref_handler = _opcode_handlers["STORE_DEREF"]


def _store_deref(inst, /, stack, frame, **rest):
    """A variable of the caller's, by ``nonlocal``."""
    if _symbolic_tracing() is not None:
        cell = frame.localsplus[inst.arg + (frame.code.co_nlocals if sys.version_info < (3, 11) else 0)]
        value = stack.pop_wrapped()
        if not isinstance(value.value, _UNCHANGING):
            value = _kept_by_caller(value, cell.provenance)
            if value is None:
                return _give_up("what the program has made is kept in a variable of its caller's")
        stack.append(value)
    return _store_deref_handler(inst, stack=stack, frame=frame, **rest)


def _interpreted(function: Callable) -> Callable:
    return lambda *args, **kwargs: interpreter._interpret_call(function, *args, **kwargs)


def _in_python(fn: Any, args: tuple, kwargs: dict) -> Callable | None:
    """A way to run ``fn`` in which the program's functions are interpreted, and no proxy is left behind."""
    try:
        function = _CALLING_BACK.get(fn) if args else None
        if function is None and kwargs.get("key") is not None and kwargs["key"].value is not None:
            function = _CALLING_BACK_BY_KEY.get(fn)
        if fn is itertools.accumulate and len(args) == 2 and args[1].value is not None:
            function = _accumulate
    except TypeError:  # unhashable
        return None
    if function is not None:
        return _interpreted(function) if _program_asks() else None
    if isinstance(fn, MethodWrapperType) and isinstance(fn.__self__, _NAMESPACES):  # thunder leaves these bound
        owner = interpreter.wrap_const(fn.__self__)
        found = _in_python(getattr(fn.__objclass__, fn.__name__), (owner, *args), kwargs)
        return found and (lambda *args, **kwargs: found(owner, *args, **kwargs))
    several = args and len(args) + len(kwargs) > 1
    if several and _symbolic_tracing() is not None and _may_store(fn):
        try:
            keeps = _keeps_numbers(fn, args, kwargs)
        except Unsafe as error:
            reason = str(error)
            return lambda *args, **kwargs: _give_up(reason)
        if keeps:
            return lambda container, *values, **named: interpreter._interpret_call(
                fn, container, *map(_to_keep, values), **{name: _to_keep(value) for name, value in named.items()}
            )
    return None


def _give_up(reason: str) -> Any:
    """End the tracing by an exception in the program, so that it leaves its ``with`` and ``finally`` blocks.

    A program that catches it is exact, too, as with any exception.
    """
    return interpreter.do_raise(Unsafe(reason))


def _is_given_whole(fn: Any) -> bool:
    """Whether a function of torch's or thunder's looks into a tuple that it is given."""
    if isinstance(fn, symbol.Symbol):
        return True
    module = getattr(fn, "__module__", None)
    return isinstance(module, str) and module.startswith(("torch", "thunder.")) and module not in _INTERPRETER


_INTERPRETER = (interpreter.__name__, jit_ext.__name__)


def _let_numbers_be_seen(values: tuple) -> None:
    """Tuples that are handed to a function as a whole: the numbers in them become symbolic before."""
    for value in values:
        if isinstance(value, WrappedValue) and holds_withheld(value.value):
            _see_items(value)
            if holds_withheld(value.value):
                raise ValueWithheld("in a tuple that a function takes as a whole")


def _see_items(value: WrappedValue) -> None:
    if type(value.value) is tuple and value.original_value is value.nothing:
        value.track_items()
        for item in value.item_wrappers:
            _see_items(item)
        value.register_proxy(tuple(item.value for item in value.item_wrappers))


def _lookaside(fn, *args, **kwargs):
    if _tracing.get() is not None and (found := _in_python(fn, args, kwargs)) is not None:
        return found
    tracing = _symbolic_tracing()
    if tracing is None:
        return _general_lookaside(fn, *args, **kwargs)
    if (fn is int or fn is float) and len(args) == 1 and not kwargs and _is_symbolic(args[0].value):
        return _TO_INT if fn is int else _TO_FLOAT
    if fn is type:
        return _type if len(args) == 1 else _general_lookaside(fn, *args, **kwargs)
    if fn is len and len(args) == 1 and isinstance(args[0].value, TensorProxy):
        return _len
    if fn is pow and len((*args, *kwargs)) == 3:  # which proxies do not have
        return _on_plain_numbers(fn)
    found = _general_lookaside(fn, *args, **kwargs)
    if tracing.numbers and _is_given_whole(fn):
        _let_numbers_be_seen((*args, *kwargs.values()))
    if any(fn is f for f in _INDEXING) and found is not None and len(args) == 2 and _is_known(args[1].value):
        return lambda items, index: found(items, interpreter.wrap_const(_concrete(index.value)))
    if found is None and interpreter.is_opaque(fn):
        owner = getattr(fn, "__objclass__", None) or getattr(fn, "__self__", None)
        module = getattr(fn, "__module__", None) or getattr(owner, "__module__", None)
        looks_inside = module not in _PROTOCOL_MODULES or fn in _BY_IDENTITY
        if looks_inside and any(_holds_number(a.value) for a in (*args, *kwargs.values())):
            return _on_plain_numbers(fn)
    return found


def _on_plain_numbers(fn: Callable) -> Callable:
    def on_plain_numbers(*args, **kwargs):
        return _Plain().call(fn, args, kwargs)

    on_plain_numbers.in_place_of = fn
    return interpreter.interpreter_needs_wrap(on_plain_numbers)


# What ends loops and attribute look-ups; no program branches on a number by it.
_ORDINARY_EXCEPTIONS = (StopIteration, AttributeError, GeneratorExit)
_curexc = interpreter.InterpreterRuntimeCtx.curexc
_raise_handler = _opcode_handlers["RAISE_VARARGS"]


def _raise(inst, /, stack, **rest):
    """A ``raise`` of the program itself: what led there are branches, which are facts."""
    result = _raise_handler(inst, stack=stack, **rest)
    tracing = _tracing.get()
    if tracing is not None and inst.arg and result is _EXCEPTION_RAISED and _program_asks():
        tracing.raised.append(_curexc.fget(interpreter.get_interpreterruntimectx()))
    return result


def _note_exception(ctx, value):
    """An exception is taken out of ``curexc`` by the frame that it has reached: note those of the program."""
    tracing = _tracing.get()
    if tracing is not None and value is None:
        reached = _curexc.fget(ctx)
        if (
            reached is not None
            and not isinstance(reached, _ORDINARY_EXCEPTIONS)
            and all(reached is not known for known in tracing.raised)
            and _program_asks()
        ):
            tracing.exceptions.append(type(reached).__name__)
    _curexc.fset(ctx, value)


_slice_grad = transforms._grad_fn_map[_P.SLICE]


def _slice_grad_of_sizes(a, start_indices, end_indices, strides=None):
    """thunder's pads the gradient by numbers made plain ints, which would be facts; integers need not be."""
    dense = strides is None or all(type(s) is int and s == 1 for s in strides)
    numbers = (*a.shape, *start_indices, *end_indices)
    if _symbolic_tracing() is None or not dense or not any(map(_is_symbolic, numbers)):
        return _slice_grad(a, start_indices, end_indices, strides)
    result = prims.slice_prim(a, start_indices, end_indices, strides)
    gradient = transforms.get_grad(result)
    around = [(low, size - high, 0) for low, high, size in zip(start_indices, end_indices, a.shape, strict=True)]
    transforms.put_grad(a, prims.pad(gradient, transforms.const_as(0, gradient.dtype), around))
    return result


def _same_shape(a, b):
    """thunder's own compares sizes of shapes of different length first, which would be facts."""
    return len(a) == len(b) and tuple(a) == tuple(b)


_Processor = trace_interpreter.TraceSubstitutionProcessor
_add_to_swap_map = _Processor.add_to_swap_map
_write = _Processor.write


def _swap_number(self, old, new):
    """A number of the trace may be a constant when a transform computes it again: facts came in between."""
    if isinstance(old, NumberProxy) and isinstance(new, Number) and _tracing.get() is not None:
        self.swap_map[proxies.variableify(old)] = new
        return
    if isinstance(old, NumberProxy) and isinstance(new, NumberProxy) and _symbolic_tracing() is not None:
        # thunder takes a number that is there already for the new name of the other.
        one, other = (new, old) if proxies.variableify(new) in self.env else (old, new)
        if _ends_in(self.swap_map, other, one):
            return  # the other way round they were exchanged before, and one name for the number is enough
    _add_to_swap_map(self, old, new)


def _ends_in(swap_map: Mapping, number: Any, other: NumberProxy) -> bool:
    """Whether following the exchanges from one number leads to another."""
    seen: set[str] = set()
    while isinstance(number, NumberProxy) and number.name not in seen:
        if number.name == other.name:
            return True
        seen.add(number.name)
        number = swap_map.get(proxies.variableify(number))
    return False


def _write_number(self, v, val, allow_duplicates=True):
    if isinstance(v, NumberProxy) and isinstance(val, Number) and _tracing.get() is not None:
        self.env.setdefault(v.name, val)
    else:
        _write(self, v, val, allow_duplicates)


_unpack_attr_printer = prims.unpack_attr.python_printer


def _print_attribute(operation, out, arguments, keywords):
    """thunder writes any name behind a dot: that of another attribute, or what is no name, would be code."""
    line = _unpack_attr_printer(operation, out, arguments, keywords)
    name = str(arguments[1])
    if name.isascii() and name.isidentifier() and not keyword.iskeyword(name):
        return line
    result, _, parent = line.removesuffix(f".{name}").rpartition(" = ")
    return f"{result} = getattr({parent}, {name!a})"


def _install() -> None:
    object.__setattr__(prims.unpack_attr, "python_printer", _print_attribute)  # (frozen)
    utils.same_shape = _same_shape
    thunder.torch._get_fake_arg = _symbolic_fake_argument
    thunder.torch._fake_type_to_thunder = _thunder_of_fake
    transforms.register_grad(_P.SLICE, _slice_grad_of_sizes)
    _Processor.add_to_swap_map = _swap_number
    _Processor.write = _write_number
    NumberProxy.value = _NumberValue()
    number_classes = (NumberProxy, proxies.IntegerProxy, proxies.FloatProxy, proxies.ComplexProxy)
    for cls in number_classes:
        cls.replace = _carry_expression(cls.__dict__["replace"])
    for cls in (*number_classes, TensorProxy):
        if "type_string" in cls.__dict__:
            cls.type_string = _silently(cls.__dict__["type_string"])
        if cls is not TensorProxy and "__repr__" in cls.__dict__:
            cls.__repr__ = _number_repr(cls.__dict__["__repr__"])
    NumberProxy._elementwise_binary_helper = staticmethod(_elementwise_binary)
    NumberProxy._elementwise_unary_helper = staticmethod(_elementwise_unary)
    NumberProxy.__str__ = _number_text
    NumberProxy.__format__ = _number_format
    NumberProxy.__round__ = _round
    NumberProxy.__getattr__ = _number_attribute
    TensorProxy.__getattr__ = _tensor_attribute_
    new = [_number_text, _number_format, _round, _number_attribute, _tensor_attribute_]
    for name in ("__lshift__", "__rlshift__", "__rshift__", "__rrshift__"):
        setattr(NumberProxy, name, _by_value(name))
        new.append(getattr(NumberProxy, name))
    # Methods of proxies are run, not interpreted.
    for method in new:
        wrapped = interpreter.interpreter_needs_wrap(jit_ext.record_source_loc_in_symbol_header(method))
        _lookasides[method] = wrapped

    symbol.Symbol.__call__ = _call_symbol
    jit_ext.JitCtx = _RecordingJitCtx
    jit_ext.general_jit_callbacks[interpreter.INTERPRETER_CALLBACKS.WRAP_CALLBACK] = _wrap_withheld
    jit_ext.general_jit_lookaside = _lookaside
    interpreter.wrap_attribute = _wrap_attribute_read
    interpreter.wrap_binary_subscr = _wrap_item_read
    interpreter.globals_lookup = _look_up_global
    interpreter._default_provenance_tracking_lookaside_map[dict.__contains__] = _contains
    _opcode_handlers["IS_OP"] = _is
    _opcode_handlers["RAISE_VARARGS"] = _raise
    _opcode_handlers["STORE_DEREF"] = _store_deref
    _lookasides[_order] = interpreter.interpreter_needs_wrap(_order)
    _lookasides[isinstance] = _isinstance
    _lookasides[getattr] = _getattr
    _lookasides[hasattr] = _hasattr
    _lookasides[bool] = _bool
    _lookasides[setattr] = _setattr
    _lookasides[list.__new__] = _new_list
    _lookasides[list.__init__] = _fill_list
    interpreter.InterpreterRuntimeCtx.curexc = _curexc.setter(_note_exception)


_install()


current_trace = _tracectx.get  # current_trace(None) is None while nothing is traced


# -- compile and run -------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class Program:
    """What thunder compiled for one call."""

    entry: Any  # thunder's CacheEntry
    mutates: bool  # whether it writes into tensors it was given
    in_place: bool  # whether it writes into any tensor: then thunder compiles shared memory in a way of its own
    grad_enabled_after: bool | None  # the grad mode that the program leaves behind, None if unchanged
    reusable: bool  # False when thunder wrote a tensor of this very call into the program
    text: Any = None  # what it computes: equal for programs that do the same


def compile_program(
    jfn: Any,
    fn: Any,
    args: tuple,
    kwargs: dict,
    tracing: Tracing,
    alias_groups: Callable[[dict[Path, int]], str],
) -> Program:
    """Trace and compile ``fn`` for these arguments, leaving what was learned in ``tracing.recorder``.

    ``alias_groups`` tells which arguments of the computation, given as path -> position, share memory.

    Raises whatever thunder raises, and ``Unsafe`` when the result cannot be trusted.
    """
    shared_data, stats = jfn._lc_cd, jfn._lc_cs
    data = copy.copy(shared_data)
    data.cache_option = CACHE_OPTIONS.SYMBOLIC_VALUES if tracing.symbolic else CACHE_OPTIONS.CONSTANT_VALUES
    data.autocast_stack = type(shared_data.autocast_stack)()
    data.is_grad_enabled = torch.is_grad_enabled()
    info = _cache_info(data, fn)

    token = thunder._cache_info_ctx.set(_CoveredBySignature(info))
    try:
        with langctxs.langctx(data.langctx), _watch(tracing), _transforms_as_before(jfn):
            if isinstance(fn, FunctionType):
                tracing.recorder.read(("fn",), None, fn)
            if tracing.numbers:
                args, kwargs = withhold(args, kwargs, tracing.numbers)
            with _interrupts_as_they_are():
                prologue, computation, epilogue = shared_data.acquire_initial_trace(
                    fn, args, kwargs, data, stats, data.executors_list[0]
                )
            grad_enabled_after = data.is_grad_enabled
            if tracing.symbolic and tracing.exceptions:
                raise Unsafe(f"the program caught {', '.join(sorted(set(tracing.exceptions)))}")
            tracing.transforming = True
            mutates = _mutates_inputs(computation)
            reusable = not _bakes_tensors(computation) and not _bakes_tensors(epilogue)
            in_place = _has_in_place(computation.bound_symbols)
            if in_place:
                paths = map(_history_path, computation.args)
                positions = {path: i for i, path in enumerate(paths) if path is not None}
                info["alias_tensor_indices"] = alias_groups(positions)
                if tracing.symbolic and info["alias_tensor_indices"]:
                    # thunder reshapes one of them to the other's shape, by names that are not defined yet.
                    raise Unsafe("writes in place, and arguments share memory")
            entry = shared_data.apply_transforms_and_build_cache_entry(
                data, stats, info, prologue, computation, epilogue
            )
            if tracing.symbolic:
                _check_names(entry.computation_traces[-1])
                if entry.backward_traces:
                    _check_names(entry.backward_traces[-1])
            if entry.backward_traces:
                entry = _clearing_backward(entry)
    finally:
        thunder._cache_info_ctx.reset(token)
    changed = grad_enabled_after != torch.is_grad_enabled()
    return Program(entry, mutates, in_place, grad_enabled_after if changed else None, reusable, _text(entry))


@contextlib.contextmanager
def _transforms_as_before(jfn: Any) -> Iterator[None]:
    """Transforms take notes from one trace to the next, which an attempt that fails would leave behind."""
    before = [(transform, dict(vars(transform))) for transform in jfn._lc_transforms if hasattr(transform, "__dict__")]
    try:
        yield
    except BaseException:
        for transform, attributes in before:
            vars(transform).clear()
            vars(transform).update(attributes)
        raise


# They say nothing about the program: it is not compiled in another way because of them.
OUT_OF_MEMORY = (MemoryError, torch.OutOfMemoryError)


@contextlib.contextmanager
def _interrupts_as_they_are() -> Iterator[None]:
    """thunder's interpreter makes an ordinary error of whatever ends it, which would be gone around."""
    try:
        yield
    except interpreter.InterpreterError as error:
        cause = cause_of(error)
        if isinstance(cause, OUT_OF_MEMORY) or not isinstance(cause, Exception):
            raise cause from None
        raise


def shared(program: Program, others: Iterable[Program]) -> Program:
    """The program with the compiled functions of another that computes the same, where there is one."""
    for other in others:
        if program.text is not None and program.text == other.text:
            entry, same = program.entry, other.entry
            entry = entry._replace(
                computation_fn=same.computation_fn,
                computation_traces=same.computation_traces,
                backward_fn=same.backward_fn,
                backward_traces=same.backward_traces,
            )
            return attrs.evolve(program, entry=entry)
    return program


def _text(entry: Any) -> Any:
    """Computation and backward up to the names of what they compute; None where that cannot be told."""
    try:
        return tuple(
            _text_of_trace(traces[-1]) for traces in (entry.computation_traces, entry.backward_traces) if traces
        )
    except Exception:  # a trace that does not print, an executor's that is no Python
        return None


def _text_of_trace(trace: Any) -> tuple:
    context = trace.python_ctx()
    names: dict[str, str] = {}
    tree = ast.parse(trace.python())
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in context:
            node.id = names.setdefault(node.id, f"v{len(names)}")
        elif isinstance(node, ast.arg):
            node.arg = names.setdefault(node.arg, f"v{len(names)}")
    bound = frozenset((name, Box(value)) for name, value in context.items())
    return ast.dump(tree), bound


def _bakes_tensors(trace: Any) -> bool:
    """Whether the trace holds a tensor itself instead of a name for one.

    thunder does that with tensors in an argument that is returned inside of another container.
    """
    return any(isinstance(value, torch.Tensor) for operation in trace.bound_symbols for value in operation.flat_args)


def _check_names(trace: Any) -> None:
    """That every name is defined before it is used: transforms lose the definitions of some numbers."""
    known = {p.name for p in _proxies_in(trace.args)}
    for operation in trace.bound_symbols:
        if operation.sym.id is prims.PrimIDs.DEL:
            continue
        for proxy in operation.flat_proxy_args:
            if isinstance(proxy, (TensorProxy, NumberProxy)) and proxy.name not in known:
                raise Unsafe(f"{proxy.name} is used but not defined")
        known.update(p.name for p in operation.flat_proxy_outs)


def _clearing_backward(entry: Any) -> Any:
    """The entry with a backward that empties the lists it is given, which torch's side of it insists on.

    thunder's does so for those it takes anything from: not where no output depends on an input.
    """
    backward = entry.backward_traces[-1]
    cleared = sum(operation.sym.name == _CLEAR for operation in backward.bound_symbols)
    if cleared == 4:  # saved_for_backward, its two parts, and the cotangents
        return entry
    compute = entry.backward_fn

    def backward_fn(saved_for_backward: list, cotangents: list) -> Any:
        tensors = saved_for_backward[0]
        gradients = compute(saved_for_backward, cotangents)
        tensors.clear()
        cotangents.clear()
        return gradients

    return entry._replace(backward_fn=backward_fn)


_CLEAR = "clear_mutable_collection"


def _proxies_in(values: Any) -> Iterator[Proxy]:
    for value in values:
        if isinstance(value, proxies.CollectionProxy):
            yield from _proxies_in(value.coll)
        elif isinstance(value, Proxy):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _proxies_in(value)


def _is_shape_operation(sym: Any) -> bool:
    return bool(sym.tags) and prims.OpTags.SHAPE_OP in sym.tags


def _has_in_place(operations: Any) -> bool:
    return any(update_aliases._is_inplace_op(op) or _has_in_place(op.subsymbols) for op in operations)


def _mutates_inputs(computation: Any) -> bool:
    """Whether an in-place operation may reach memory that the program was given."""
    given = {p.name for p in computation.args if isinstance(p, TensorProxy)}

    def visit(operations: Any) -> bool:
        for operation in operations:
            reads = [p.name for p in operation.flat_proxy_args]
            if operation.sym.id is prims.PrimIDs.COPY_:
                written = operation.args[1].name
            else:
                written = reads[0] if reads and update_aliases._is_inplace_op(operation) else None
            if written in given:
                return True
            if any(name in given for name in reads) and (
                update_aliases._is_view_creation_op(operation) or _is_shape_operation(operation.sym)
            ):
                given.update(p.name for p in operation.flat_proxy_outs if isinstance(p, TensorProxy))
            if visit(operation.subsymbols):
                return True
        return False

    return visit(computation.bound_symbols)


def _history_path(proxy: Proxy) -> Path | None:
    return _path(proxy.history) if isinstance(getattr(proxy, "history", None), ProvenanceRecord) else None


class _CoveredBySignature(dict):
    """thunder's cache info, for tracing to read; false, so that no checks of it go into the prologue."""

    def __bool__(self) -> bool:
        return False


def _cache_info(data: Any, fn: Any) -> dict[str, Any]:
    """As thunder's ``populate_cache_info``: pushes autocast, and tells of the distributed state."""
    on_cpu, on_cuda = torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")
    if on_cpu and on_cuda:
        raise NotImplementedError(
            "thunder.autocast does not support torch.is_autocast_enabled() and "
            "torch.is_autocast_cpu_enabled() simultaneously at this moment."
        )
    if on_cpu or on_cuda:
        device = "cpu" if on_cpu else "cuda"
        data.autocast_stack.push(device, thunder.dtypes.to_dtype(torch.get_autocast_dtype(device)), True)
    return {
        "default_dtype": torch.get_default_dtype(),
        "default_device": torch.get_default_device(),
        "is_grad_enabled": torch.is_grad_enabled(),
        "no_grad_sync": no_grad_sync(fn),
        "alias_tensor_indices": "",
    }


def no_grad_sync(fn: Any) -> bool:
    """Whether a data-parallel module is inside ``no_sync()``."""
    if getattr(fn, "use_ddp", False) or getattr(fn, "use_fsdp", False):
        from thunder.distributed import get_skip_data_parallel_grad_sync

        return get_skip_data_parallel_grad_sync()
    return False


def replace_part(jfn: Any, name: str, before: Any, value: Any) -> None:
    """Put a parameter, buffer or submodule of the original into thunder's module, where that had the old one."""
    for parts, kind in (
        (jfn._overrides_parameters, torch.nn.Parameter),
        (jfn._overrides_buffers, torch.Tensor),
        (jfn._module_cache, torch.nn.Module),
    ):
        if name in parts and parts[name] is before:
            if isinstance(value, kind) and (kind is not torch.Tensor or not isinstance(value, torch.nn.Parameter)):
                parts[name] = value
            else:  # a parameter that became a buffer, say
                del parts[name]


@contextlib.contextmanager
def copied_state(jfn: Any, fn: Any) -> Iterator[None]:
    """For a while, let a module hold copies of its parameters and buffers; then take back all that was set on it."""
    if not isinstance(fn, torch.nn.Module):
        yield
        return
    memo: dict[int, Any] = {}
    places = [jfn._overrides_parameters, jfn._overrides_buffers]
    for module in fn.modules():
        places += [module._parameters, module._buffers, module.__dict__]
    before = [dict(place) for place in places]
    copied = ("_parameters", "_buffers")
    try:
        for place, values in zip(places, before, strict=True):
            if not all(name in values for name in copied):  # not the dict of a module itself
                leaves = {n: v if v is None or v.is_leaf else v.detach() for n, v in values.items()}
                place.update({name: copy.deepcopy(value, memo) for name, value in leaves.items()})
        yield
    finally:
        for place, values in zip(places, before, strict=True):
            for name in place.keys() - values.keys():
                del place[name]
            for name, value in values.items():
                if name not in place or place[name] is not value:
                    place[name] = value


def parameters_of(jfn: Any) -> list[torch.Tensor]:
    """The parameters that thunder's module gives to programs; of a function, none."""
    return [p for p in getattr(jfn, "_overrides_parameters", {}).values() if p is not None]


def writes_attributes(entry: Any) -> bool:
    """Whether the epilogue does more than to return the result."""
    return any(o.sym.id not in (_P.UNPACK_TRIVIAL, _P.RETURN, _P.DEL) for o in entry.epilogue_traces[-1].bound_symbols)


def taken_from(jfn: Any, name: str) -> dict | None:
    """The dict from which thunder's module takes a parameter or buffer, if it is the original's."""
    for parts, get in (
        (jfn._overrides_parameters, jfn._model.get_parameter),
        (jfn._overrides_buffers, jfn._model.get_buffer),
    ):
        if name in parts:
            try:
                if get(name) is parts[name]:
                    return parts
            except AttributeError:
                continue
    return None


def is_own_submodule(jfn: Any, fn: Any, name: str) -> bool:
    """Whether thunder's module takes this submodule from where the original has it."""
    return jfn.get_submodule(name) is fn.get_submodule(name)


@attrs.frozen
class Unpacking:
    """What a prologue hands on, as paths.

    Besides those of ``guards`` there are ("parameter", name), ("buffer", name) and ("submodule", name) of
    thunder's module, and ("jfn",), the module itself.
    """

    to_computation: tuple[Path, ...]
    to_epilogue: tuple[Path, ...]
    checked: frozenset[Path]  # what the prologue checks


_UNPACK_FROM_MODULE = {
    _P.UNPACK_PARAMETER: "parameter",
    _P.UNPACK_BUFFER: "buffer",
    _P.UNPACK_SUBMODULE: "submodule",
}
_CHECKS = frozenset(
    [
        "check_tensor_metadata",
        "check_number_type_and_value",
        "check_string_value",
        "check_literal_like",
        "check_slice_value",
    ]
)


def read_prologue(entry: Any) -> Unpacking | None:
    """What the prologue of a compiled entry does, or None where it does something unknown."""
    paths: dict[str, Path] = {"args": ("args",), "kwargs": ("kwargs",)}
    checked: set[Path] = set()
    try:
        for operation in entry.prologue_traces[-1].bound_symbols:
            kind, name = operation.sym.id, operation.sym.name
            if kind is _P.RETURN:
                computation, epilogue = operation.args[0]
                found = [tuple(paths[p.name] for p in values) for values in (computation, epilogue)]
                return Unpacking(*found, frozenset(checked))
            if kind is _P.UNPACK_TRIVIAL:
                continue  # args and kwargs
            if name == "check_len":
                if operation.args[0].name not in ("args", "kwargs"):
                    return None
                continue
            if name == "shape":
                source = paths[operation.args[0].name]
                for dim, size in enumerate(operation.output):
                    if isinstance(size, Proxy):
                        paths[size.name] = ("item", ("attr", source, "shape"), dim)
                continue
            if name in _CHECKS:
                checked.add(paths[operation.args[0].name])
                continue
            path = _unpacked_path(operation, paths)
            if path is None:
                return None
            paths[operation.output.name] = path
    except (LookupError, AttributeError, TypeError, ValueError):
        return None
    return None


def _unpacked_path(operation: Any, paths: dict[str, Path]) -> Path | None:
    kind = operation.sym.id
    if kind is _P.UNPACK_FUNCTION_OBJ:
        return ("fn",)
    above = paths[operation.args[0].name]
    if kind is _P.UNPACK_THUNDER_MODULE:
        return ("jfn",) if above == ("fn",) else None
    if kind in _UNPACK_FROM_MODULE:
        prefix = "" if above == ("jfn",) else f"{above[1]}." if above[0] == "submodule" else None
        return None if prefix is None else (_UNPACK_FROM_MODULE[kind], prefix + operation.args[1])
    if above == ("jfn",):
        above = ("fn",)
    key = operation.args[1]
    if kind is _P.UNPACK_ATTR and isinstance(key, str):
        return ("attr", above, key)
    if kind is _P.UNPACK_GETITEM and isinstance(key, (int, str)):
        return ("item", above, key)
    return None


def bare(function: Callable) -> Callable:
    """A compiled function without what thunder puts around it: autograd and autocast switched off."""
    return inspect.unwrap(function)


def epilogue_for(entry: Any) -> tuple[Callable, int | None]:
    """The epilogue; and, where all it does is to return one of its arguments, the position of that."""
    trace = entry.epilogue_traces[-1]
    ids = [operation.sym.id for operation in trace.bound_symbols]
    if any(id_ not in (_P.UNPACK_TRIVIAL, _P.RETURN, _P.DEL) for id_ in ids) or ids.count(_P.RETURN) != 1:
        return entry.epilogue_fn, None
    returned = trace.bound_symbols[ids.index(_P.RETURN)].args
    names = [p.name for p in trace.args if isinstance(p, Proxy)]
    only = None
    if len(returned) == 1 and isinstance(returned[0], Proxy) and len(names) == len(trace.args):
        only = names.index(returned[0].name) if returned[0].name in names else None
    return bare(entry.epilogue_fn), only


def attach_backward(jfn: Any, entry: Any, result: tuple) -> Any:
    """Connect what the computation returned to torch's autograd, as ``thunder.jit`` does."""
    data, (saved_tensors, saved_other) = result
    options = jfn._lc_cd.compile_options
    connect_to_autograd(
        backward_fn=entry.backward_fn,
        flat_args=data["flat_args"],
        flat_output=data["flat_output"],
        saved_tensors=saved_tensors,
        saved_other=saved_other,
        return_none_instead_of_grads=entry.return_none_instead_of_grads,
        disable_split_autograd=options.get("thunderfx_disable_split_autograd", False),
        is_differentiable_outputs=options.get("is_differentiable_outputs", None),
    )
    return data["output"]


def run_prologue(jfn: Any, entry: Any, args: tuple, kwargs: dict) -> tuple:
    """The arguments of computation and epilogue.  Raises when a check of thunder's fails."""
    token = thunder._cache_info_ctx.set({})
    try:
        with compile_data_and_stats(jfn._lc_cd, jfn._lc_cs):
            return entry.prologue_fn(*args, **kwargs)
    finally:
        thunder._cache_info_ctx.reset(token)


# -- statistics ------------------------------------------------------------------------------------


class Counts(Protocol):
    """What a table knows of its calls."""

    calls: int
    hits: int
    misses: int
    last: Any  # the entry that served the last call, with its ``program``


def _counted(name: str) -> property:
    """A number of thunder's statistics, taken from the table when someone asks."""

    def get(stats):
        return getattr(stats.__dict__["_speckey_counts"], name) + stats.__dict__.get("_speckey_" + name, 0)

    def set_(stats, value):
        stats.__dict__["_speckey_" + name] = value - getattr(stats.__dict__["_speckey_counts"], name)

    return property(get, set_)


def _of_last(name: str, field: str) -> property:
    def get(stats):
        last = stats.__dict__["_speckey_counts"].last
        return stats.__dict__.get(name) if last is None else getattr(last.program.entry, field)

    def set_(stats, value):
        stats.__dict__[name] = value

    return property(get, set_)


class _TableStats(CompileStats):
    """thunder's statistics of a compiled function, for which a hit does not have to do anything."""

    calls = _counted("calls")
    cache_hits = _counted("hits")
    cache_misses = _counted("misses")
    last_traces = _of_last("last_traces", "computation_traces")
    last_prologue_traces = _of_last("last_prologue_traces", "prologue_traces")
    last_epilogue_traces = _of_last("last_epilogue_traces", "epilogue_traces")
    last_backward_traces = _of_last("last_backward_traces", "backward_traces")
    last_prologue = _of_last("last_prologue", "prologue_fn")
    last_computation = _of_last("last_computation", "computation_fn")


def follow(jfn: Any, counts: Counts) -> None:
    """Let thunder's questions about a compiled function be answered from its table."""
    stats = jfn._lc_cs
    stats.__dict__["_speckey_counts"] = counts
    stats.__class__ = _TableStats


def list_entry(jfn: Any, program: Program) -> None:
    """Show the entry to those who look into thunder's cache."""
    jfn._lc_cs.interpreter_cache.append(program.entry)


def unlist_entry(jfn: Any, program: Program) -> None:
    """Take back ``list_entry``, whether or not it was done."""
    listed = jfn._lc_cs.interpreter_cache
    listed[:] = [entry for entry in listed if entry is not program.entry]


# -- the option ------------------------------------------------------------------------------------

original_jit = thunder.jit
original_compile = thunder.compile
original_add_transform = transforms.add_transform


def replace_entry_points(jit: Callable, compile: Callable, add_transform: Callable) -> None:
    """Recipes and ``thunderfx`` import ``jit`` when they are called, so that they get it too."""
    thunder.jit = jit
    thunder.compile = compile
    transforms.add_transform = add_transform
    _refuse_in_plain_jit()


def name_cache_option(jfn: Any, cache: object) -> None:
    """What ``thunder.compile_data(jfn).cache_option`` says."""
    data = jfn._lc_cd
    data.cache_option = cache
    look_up = data.get_computation_and_inputs
    weakly = weakref.ref(data)  # as thunder refers to it

    @functools.wraps(look_up)
    def get_computation_and_inputs(*args, **kwargs):
        """thunder's own way, for those of its tools that ask for it: it does not know the option."""
        data = weakly()
        data.cache_option = CACHE_OPTIONS.CONSTANT_VALUES
        try:
            return look_up(*args, **kwargs)
        finally:
            data.cache_option = cache

    data.get_computation_and_inputs = get_computation_and_inputs


def cache_option(jfn: Any) -> object:
    """The same of any callable; None for one that thunder did not compile."""
    return getattr(getattr(jfn, "_lc_cd", None), "cache_option", None)


def replace_forward(jfn: Any, forward: Callable) -> None:
    """Let thunder's module call this instead of its own look-up."""
    jfn._forward_fn = forward


def take_over(compiled: Any, jfn: Any) -> None:
    """Make another callable be what ``thunder.jit`` returned, to thunder's questions."""
    compiled._lc_cd, compiled._lc_cs, compiled._lc_transforms = jfn._lc_cd, jfn._lc_cs, jfn._lc_transforms


def force_graph_code(fn: Any) -> None:
    """Write the Python of a graph that torch writes on its first call, which would be traced otherwise."""
    if isinstance(fn, torch.fx.GraphModule):
        from thunder.dynamo.utils import recompile_graph

        recompile_graph(fn)


def recipe_with_options(fn: Any, recipe: Any, options: dict[str, Any]) -> Any:
    """The recipe that ``thunder.compile`` would take, passing more options to ``thunder.jit``."""
    import thunder.recipes
    from thunder.core.recipe import Recipe

    if recipe == "auto":
        recipe = Recipe.get_for_model(fn)
    if isinstance(recipe, str):
        known = thunder.recipes.get_recipe_class(recipe)
        if known is None:
            return recipe  # thunder.compile says what is wrong with it
        recipe = known()
    setup = recipe.setup_config
    recipe.setup_config = lambda: {**setup(), **options}
    return recipe


def _refuse_in_plain_jit() -> None:
    """A ``jit`` imported from thunder before speckey does not know the option, and must say so."""
    resolve = thunder.common.resolve_cache_option

    def resolve_cache_option(option, /):
        if type(option).__module__.startswith("speckey.") or getattr(option, "__module__", "").startswith("speckey."):
            raise TypeError(
                "this thunder.jit was imported before speckey and does not know cache=SpecKeyCache(); "
                "import speckey first, or call it as thunder.jit(...)"
            )
        return resolve(option)

    thunder.common.resolve_cache_option = resolve_cache_option
