"""What a policy says of the sizes of one call: whether they are within bounds, and the facts that follow.

The facts are recorded before tracing begins, so that they are tested on each look-up, and what they imply
is no fact of its own any more.  Knows nothing of thunder.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from speckey import symbols
from speckey.errors import BoundsError
from speckey.guards import Path, fetch
from speckey.key import names_of_parameters, path_text
from speckey.policies.vary import Arguments, Dim
from speckey.recorder import Recorder

Place = tuple[int, int]  # (tensor, dimension)


def arguments_of(fn: Any, args: tuple, kwargs: dict, paths: Iterable[Path]) -> Arguments:
    """What a call shows of its arguments; ``paths`` are those of everything in them that is looked into."""
    try:
        parameters = list(inspect.signature(getattr(fn, "forward", fn)).parameters.values())
    except (TypeError, ValueError):
        parameters = None
    names = names_of_parameters(fn, args, kwargs)
    by_name = {path_text(path, names): path for path in paths}
    values = {name: fetch(by_name[name], fn, args, kwargs) for name in sorted(by_name)}
    return Arguments(
        parameters=tuple(p.name for p in parameters or () if p.kind not in _VARIADIC),
        variadic=parameters is None or any(p.kind in _VARIADIC for p in parameters),
        passed=tuple(name for path, name in names.items() if path != ("fn",)),
        none=tuple(name for name, value in values.items() if value is None),
        ranks={name: value.dim() for name, value in values.items() if isinstance(value, torch.Tensor)},
    )


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def outside(dims: Mapping[Place, Dim], shapes: Sequence[Sequence[int]], names: Sequence[str]) -> str:
    """Why a call is out of bounds; empty where it is not.

    Raises:
        BoundsError: it is, and a dimension concerned asks for an error.
    """
    reason = ""
    for place, dim in dims.items():
        size = shapes[place[0]][place[1]]
        if dim.free and not dim.allows(size):
            text = f"{_text(place, names)} is {size}, outside of {dim.range_text()}"
            if dim.outside == "error":
                raise BoundsError(f"{text}, as SpecKeyCache(vary=...) has it")
            reason = reason or text
    for name, group in _named(dims).items():
        first = group[0]
        for place in group[1:]:
            sizes = [shapes[i][d] for i, d in (first, place)]
            if sizes[0] != sizes[1]:
                texts = [f"{_text(p, names)} is {n}" for p, n in zip((first, place), sizes, strict=True)]
                text = f"{' and '.join(texts)}, both named {name!r}"
                if "error" in (dims[first].outside, dims[place].outside):
                    raise BoundsError(f"{text} by SpecKeyCache(vary=...)")
                reason = reason or text
    return reason


def assume(recorder: Recorder, dims: Mapping[Place, Dim], shapes: Sequence[Sequence[int]]) -> None:
    """Record the bounds of the sizes, and which are equal, as facts."""
    for place, dim in dims.items():
        if dim.free:
            size, number = symbols.size(*place), shapes[place[0]][place[1]]
            recorder.truth(symbols.ge(size, dim.min), number >= dim.min)
            if dim.max is not None:
                recorder.truth(symbols.le(size, dim.max), number <= dim.max)
            if dim.divisor > 1:
                recorder.truth(symbols.eq(symbols.mod(size, dim.divisor), 0), number % dim.divisor == 0)
    for group in _named(dims).values():
        for one, other in itertools.pairwise(group):
            recorder.truth(symbols.eq(symbols.size(*one), symbols.size(*other)), True)


def _named(dims: Mapping[Place, Dim]) -> dict[str, list[Place]]:
    groups: dict[str, list[Place]] = {}
    for place, dim in dims.items():
        if dim.name is not None:
            groups.setdefault(dim.name, []).append(place)
    return groups


def _text(place: Place, names: Sequence[str]) -> str:
    return f"{names[place[0]]}.shape[{place[1]}]"
