"""Which sizes a program is compiled for any value of, and within which bounds.

A policy is an object with a method ``dim``; write your own by giving a class one::

    class Batch:
        def dim(self, tensor, dim, sizes):
            return Dim(min=2) if dim == 0 else Dim(free=False)

A size that is not free is a fact in the key: another size is another entry.  Bounds are facts as well,
tested on each look-up.  No policy can make a hit wrong.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Literal, Protocol, runtime_checkable

import attrs


def _is_int(value: object) -> bool:
    return type(value) is int


@attrs.frozen
class Dim:
    """What one dimension may be.

    Attributes:
        free: whether one program serves any size (within the bounds); else another size is another entry.
        min: the smallest size that a program with a free size serves, at least 0.  With 2 or more, nobody
            has to ask whether the size is one.
        max: the largest such size; None for no bound.
        divisor: whether this divides the size is a fact: sizes that it divides and other sizes have
            programs of their own, for kernels that care for alignment.
        name: dimensions of one name have equal sizes, which is one fact; None for no name.
        outside: what becomes of a call whose size is out of bounds, or differs from one of the same name:
            "exact", an entry for its very shapes, or "error", a ``BoundsError``.

    Raises:
        TypeError: an attribute is of the wrong type.
        ValueError: bounds that no size meets, or an unknown word for ``outside``.
    """

    free: bool = True
    min: int = attrs.field(default=0, kw_only=True)
    max: int | None = attrs.field(default=None, kw_only=True)
    divisor: int = attrs.field(default=1, kw_only=True)
    name: str | None = attrs.field(default=None, kw_only=True)
    outside: Literal["exact", "error"] = attrs.field(default="exact", kw_only=True)

    def __attrs_post_init__(self) -> None:
        if type(self.free) is not bool:
            raise TypeError(f"Dim(free=...) expects True or False, got {self.free!r}")
        for word, value in (("min", self.min), ("max", 0 if self.max is None else self.max), ("divisor", self.divisor)):
            if not _is_int(value):
                raise TypeError(f"Dim({word}=...) expects an int, got {value!r}")
        if self.min < 0:
            raise ValueError(f"Dim(min=...) expects a size of at least 0, got {self.min}")
        if self.max is not None and self.max < self.min:
            raise ValueError(f"Dim(max=...) expects a size of at least min={self.min}, got {self.max}")
        if self.divisor < 1:
            raise ValueError(f"Dim(divisor=...) expects an int of at least 1, got {self.divisor}")
        if self.name is not None and not (isinstance(self.name, str) and self.name):
            raise TypeError(f"Dim(name=...) expects a name, got {self.name!r}")
        if self.outside not in ("exact", "error"):
            raise ValueError(f"Dim(outside=...) expects 'exact' or 'error', got {self.outside!r}")

    def allows(self, size: int) -> bool:
        """Whether ``size`` is within the bounds."""
        return self.min <= size and (self.max is None or size <= self.max)

    def range_text(self) -> str:
        """The bounds in words: ``1 to 4096``."""
        return f"at least {self.min}" if self.max is None else f"{self.min} to {self.max}"


FREE, FIXED = Dim(), Dim(free=False)


@runtime_checkable
class Vary(Protocol):
    """What may vary."""

    def dim(self, tensor: str, dim: int, sizes: Collection[int]) -> Dim:
        """What this dimension may be.

        Args:
            tensor: its name in the signature of the compiled function, such as ``x`` or ``batch['ids']``.
            dim: the dimension, from 0.
            sizes: the sizes that calls with this signature were compiled for, this call's included.
        """
        ...


@runtime_checkable
class NamesArguments(Protocol):
    """A policy that mentions arguments by name may have this method too, to tell the user of wrong ones."""

    def check(self, arguments: Arguments) -> None:
        """Raise ``ValueError`` where a call shows that something mentioned does not exist.

        Called before a call is compiled.
        """
        ...


@attrs.frozen
class Arguments:
    """What one call shows of the arguments of a compiled function.

    Attributes:
        parameters: the names in its signature that take one argument each.
        variadic: whether it takes further ones (``*args``, ``**kwargs``), or its signature is not known.
        passed: which names the call passes.
        none: the names of arguments that are None.
        ranks: the number of dimensions of each tensor in the arguments, by its name.
    """

    parameters: Collection[str]
    variadic: bool
    passed: Collection[str]
    none: Collection[str]
    ranks: Mapping[str, int]


@attrs.frozen
class AllDims:
    """Every size is free. The default."""

    def dim(self, tensor: str, dim: int, sizes: Collection[int]) -> Dim:
        return FREE


@attrs.frozen
class Exact:
    """No size is free: one entry per shape, as with thunder's default cache, but found as quickly as any other."""

    def dim(self, tensor: str, dim: int, sizes: Collection[int]) -> Dim:
        return FIXED


@attrs.frozen
class Automatic:
    """A size is free from the second different one on, as ``torch.compile`` does it by default."""

    def dim(self, tensor: str, dim: int, sizes: Collection[int]) -> Dim:
        return FREE if len(sizes) > 1 else FIXED


def _check_rest(policy: str, rest: object) -> None:
    if isinstance(rest, type) or not isinstance(rest, Vary):
        raise TypeError(f"{policy}(rest=...) expects a policy such as AllDims(), got {rest!r}")


def _check_dimension(policy: str, tensor: object, dim: object) -> None:
    if not isinstance(tensor, str) or not tensor:
        raise TypeError(f"{policy} expects names of arguments, such as 'x' or \"batch['ids']\", got {tensor!r}")
    if not _is_int(dim):
        raise TypeError(f"{policy} expects dimensions of {tensor!r} as ints, got {dim!r}")
    if dim < 0:  # type: ignore[operator]
        raise ValueError(f"{policy} expects dimensions of {tensor!r} counted from 0, got {dim}")


@attrs.frozen
class Dims:
    """Named dimensions of named arguments; anything else is as ``rest`` has it::

        Dims({"x": {0: "batch", 1: Dim(min=1, max=4096)}, "batch['ids']": {0: "batch"}}, rest=Exact())

    Attributes:
        tensors: for each tensor, by its name in the signature of the function, what its dimensions may be: a
            ``Dim``, or a name, short for ``Dim(name=...)``.  ``Dim(free=False)`` is static.
        rest: a policy for all other dimensions.

    Raises:
        TypeError, ValueError: names, dimensions or their meaning make no sense.  Names and dimensions that the
            function does not have are a ``ValueError`` of the first call that shows it.
    """

    tensors: Mapping[str, Mapping[int, Dim | str]] = attrs.field(hash=False)
    rest: Vary = attrs.field(factory=AllDims, kw_only=True)

    def __attrs_post_init__(self) -> None:
        _check_rest("Dims", self.rest)
        if not isinstance(self.tensors, Mapping):
            raise TypeError(f"Dims expects a dict such as {{'x': {{0: 'batch'}}}}, got {self.tensors!r}")
        known: dict[str, dict[int, Dim]] = {}
        for tensor, dims in self.tensors.items():
            if not isinstance(dims, Mapping):
                raise TypeError(f"Dims expects a dict for {tensor!r}, such as {{0: 'batch'}}, got {dims!r}")
            known[tensor] = {}
            for dim, meaning in dims.items():
                _check_dimension("Dims", tensor, dim)
                if not isinstance(meaning, (Dim, str)):
                    raise TypeError(f"Dims expects a Dim or a name for dimension {dim} of {tensor!r}, got {meaning!r}")
                known[tensor][dim] = Dim(name=meaning) if isinstance(meaning, str) else meaning
        object.__setattr__(self, "tensors", known)

    def dim(self, tensor: str, dim: int, sizes: Collection[int]) -> Dim:
        known = self.tensors.get(tensor, {}).get(dim)
        return self.rest.dim(tensor, dim, sizes) if known is None else known  # type: ignore[return-value]

    def check(self, arguments: Arguments) -> None:
        for tensor, dims in self.tensors.items():
            check_mentioned("Dims", tensor, dims, arguments)
        if isinstance(self.rest, NamesArguments):
            self.rest.check(arguments)


@attrs.frozen
class Divisible:
    """Whether ``by`` divides a size is a fact: programs of their own for aligned and for other sizes.

    Attributes:
        by: the divisor, at least 2.
        dims: of which dimensions of which tensors, such as ``{"x": [1]}``; None for all that are free.
        rest: a policy that says what may vary otherwise.

    Raises:
        TypeError, ValueError: as for ``Dims``.
    """

    by: int
    dims: Mapping[str, Collection[int]] | None = attrs.field(default=None, hash=False)
    rest: Vary = attrs.field(factory=AllDims, kw_only=True)

    def __attrs_post_init__(self) -> None:
        _check_rest("Divisible", self.rest)
        if not _is_int(self.by):
            raise TypeError(f"Divisible(by=...) expects an int, got {self.by!r}")
        if self.by < 2:
            raise ValueError(f"Divisible(by=...) expects an int of at least 2, got {self.by}")
        if self.dims is None:
            return
        if not isinstance(self.dims, Mapping):
            raise TypeError(f"Divisible(dims=...) expects a dict such as {{'x': [1]}}, got {self.dims!r}")
        for tensor, dims in self.dims.items():
            if isinstance(dims, (str, bytes)) or not isinstance(dims, Collection):
                raise TypeError(f"Divisible(dims=...) expects a list of dimensions for {tensor!r}, got {dims!r}")
            for dim in dims:
                _check_dimension("Divisible", tensor, dim)

    def dim(self, tensor: str, dim: int, sizes: Collection[int]) -> Dim:
        known = self.rest.dim(tensor, dim, sizes)
        meant = self.dims is None or dim in self.dims.get(tensor, ())
        return attrs.evolve(known, divisor=self.by) if meant and isinstance(known, Dim) else known

    def check(self, arguments: Arguments) -> None:
        for tensor, dims in (self.dims or {}).items():
            check_mentioned("Divisible", tensor, dims, arguments)
        if isinstance(self.rest, NamesArguments):
            self.rest.check(arguments)


def check_mentioned(policy: str, tensor: str, dims: Collection[int], arguments: Arguments) -> None:
    """Raise ``ValueError`` where the call shows that a tensor or dimension which a policy mentions is not there.

    An argument that the call does not pass, or passes as None, may be there in another.
    """
    rank = arguments.ranks.get(tensor)
    if rank is not None:
        if dims and max(dims) >= rank:
            raise ValueError(f"{policy} mentions dimension {max(dims)} of {tensor!r}, which has {rank} in this call")
        return
    found = re.match(r"\w+", tensor)
    argument = found[0] if found else ""
    if argument not in arguments.parameters and argument not in arguments.passed and arguments.variadic:
        return
    if tensor in arguments.none or (argument in arguments.parameters and argument not in arguments.passed):
        return
    names = ", ".join(map(repr, arguments.ranks)) or "none"
    raise ValueError(f"{policy} mentions {tensor!r}, which is no tensor of this call; its tensors are: {names}")


def checked_dim(policy: Any, tensor: str, dim: int, sizes: Collection[int]) -> Dim:
    """What a policy says, which must be a ``Dim``."""
    answer = policy.dim(tensor, dim, sizes)
    if not isinstance(answer, Dim):
        raise TypeError(f"{type(policy).__name__}.dim() is to return a speckey.policies.Dim, got {answer!r}")
    return answer
