"""Policies of a cache: what may vary."""

from speckey.policies.vary import AllDims, Automatic, Exact, Vary

__all__ = ["AllDims", "Automatic", "Exact", "Vary"]
