"""Which sizes a program is compiled for any value of.

A policy is an object with a method ``is_free``; write your own by giving a class one.  A size that is not
free is a fact in the key: another size is another entry.  No policy can make a hit wrong.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, runtime_checkable

import attrs


@runtime_checkable
class Vary(Protocol):
    """What may vary."""

    def is_free(self, tensor: str, dim: int, sizes: Collection[int]) -> bool:
        """Whether the size of this dimension is free.

        Args:
            tensor: its name in the signature of the compiled function, such as ``x`` or ``batch['ids']``.
            dim: the dimension, from 0.
            sizes: the sizes that calls with this signature were compiled for, this call's included.
        """
        ...


@attrs.frozen
class AllDims:
    """Every size is free. The default."""

    def is_free(self, tensor: str, dim: int, sizes: Collection[int]) -> bool:
        return True


@attrs.frozen
class Exact:
    """No size is free: one entry per shape, as with thunder's default cache, but found as quickly as any other."""

    def is_free(self, tensor: str, dim: int, sizes: Collection[int]) -> bool:
        return False


@attrs.frozen
class Automatic:
    """A size is free from the second different one on, as ``torch.compile`` does it by default."""

    def is_free(self, tensor: str, dim: int, sizes: Collection[int]) -> bool:
        return len(sizes) > 1
