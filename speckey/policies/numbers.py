"""Which ints and floats among the arguments a program is compiled for any value of.

A policy is an object with a method ``is_free``; write your own by giving a class one.  A number that is not
free is part of the signature: another value is another entry.  No policy can make a hit wrong.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, runtime_checkable

import attrs


@runtime_checkable
class Numbers(Protocol):
    """Which numbers may vary."""

    def is_free(self, name: str, values: Collection[int | float]) -> bool:
        """Whether this number is free.

        Args:
            name: its name in the signature of the compiled function, such as ``start`` or ``batch['n']``.
            values: those that calls were compiled for so far, this call's included.
        """
        ...


@attrs.frozen
class AutomaticNumbers:
    """A number is free from the second different value on, as ``torch.compile`` does it. The default."""

    def is_free(self, name: str, values: Collection[int | float]) -> bool:
        return len(values) > 1


@attrs.frozen
class ConstantNumbers:
    """No number is free: one entry for each value."""

    def is_free(self, name: str, values: Collection[int | float]) -> bool:
        return False


@attrs.frozen
class SymbolicNumbers:
    """Every number is free from the first call on."""

    def is_free(self, name: str, values: Collection[int | float]) -> bool:
        return True
