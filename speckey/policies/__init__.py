"""Policies of a cache: what may vary."""

from speckey.policies.numbers import AutomaticNumbers, ConstantNumbers, Numbers, SymbolicNumbers
from speckey.policies.vary import AllDims, Automatic, Exact, Vary

__all__ = [
    "AllDims",
    "Automatic",
    "AutomaticNumbers",
    "ConstantNumbers",
    "Exact",
    "Numbers",
    "SymbolicNumbers",
    "Vary",
]
