"""What torch's ``ShapeEnv`` says in sympy, as expressions over sizes.

Terms are told apart by the names of their classes, so that neither sympy nor torch's own terms need to
be known here.  A term without an exact word in the expression language is ``Unsupported``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

from speckey import symbols
from speckey.symbols import Unsupported, Value


def value_of(term: Any, sizes: Mapping[Any, Value]) -> Value:
    """The same value in the expression language.

    Args:
        term: a sympy expression or relation.
        sizes: what its symbols stand for.

    Raises:
        Unsupported: it has no exact word for a part of the term, or a symbol is not among ``sizes``.
    """
    known = sizes.get(term)
    if known is not None:
        return known
    kind = type(term).__name__
    if kind in _CONSTANTS:
        return _CONSTANTS[kind]
    if term.is_Integer:
        return int(term)
    build = _BUILD.get(kind)
    if build is None:
        raise Unsupported(f"{kind} in {term}")
    return build(*(value_of(argument, sizes) for argument in term.args))


def _all(build: Callable[[Value, Value], Value]) -> Callable[..., Value]:
    return lambda *values: reduce(build, values)


_CONSTANTS: dict[str, Value] = {"BooleanTrue": True, "BooleanFalse": False}

# Of a division by zero neither side has a value: evaluating it raises, which no look-up takes for an answer.
_BUILD: dict[str, Callable[..., Value]] = {
    "Add": _all(symbols.add),
    "Mul": _all(symbols.mul),
    "Pow": symbols.power,
    "PowByNatural": symbols.power,
    "FloorDiv": symbols.floordiv,
    "CleanDiv": symbols.floordiv,
    "Mod": symbols.mod,
    "PythonMod": symbols.mod,
    "Max": _all(symbols.maximum),
    "Min": _all(symbols.minimum),
    "Equality": symbols.eq,
    "Unequality": symbols.ne,
    "StrictLessThan": symbols.lt,
    "LessThan": symbols.le,
    "StrictGreaterThan": symbols.gt,
    "GreaterThan": symbols.ge,
    "Not": symbols.not_,
    "And": _all(symbols.and_),
    "Or": _all(symbols.or_),
}
