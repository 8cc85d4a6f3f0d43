"""Policies of a cache: what may vary, and what to drop."""

from speckey.policies.drop import LRU, Drop, Eager, Refuse, Room, Unbounded
from speckey.policies.numbers import AutomaticNumbers, ConstantNumbers, Numbers, SymbolicNumbers
from speckey.policies.vary import AllDims, Arguments, Automatic, Dim, Dims, Divisible, Exact, NamesArguments, Vary

__all__ = [
    "LRU",
    "AllDims",
    "Arguments",
    "Automatic",
    "AutomaticNumbers",
    "ConstantNumbers",
    "Dim",
    "Dims",
    "Divisible",
    "Drop",
    "Eager",
    "Exact",
    "NamesArguments",
    "Numbers",
    "Refuse",
    "Room",
    "SymbolicNumbers",
    "Unbounded",
    "Vary",
]
