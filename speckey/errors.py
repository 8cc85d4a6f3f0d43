"""The errors of speckey's own.  What thunder and the program raise is passed on as it is."""

from __future__ import annotations

from typing import Any


class SpecKeyError(Exception):
    """Above all errors of speckey's own."""


class BoundsError(SpecKeyError, ValueError):
    """A size is outside of what ``SpecKeyCache(vary=...)`` allows, and the policy asked for an error."""


class EntryLimitError(SpecKeyError, RuntimeError):
    """A call needs one more entry than ``SpecKeyCache(drop=Refuse(...))`` allows."""


class RetraceError(SpecKeyError, RuntimeError):
    """A call found no entry inside ``stance("fail_on_retrace")``.

    Attributes:
        retrace: the closest entry and the first thing that differed; None where there is no entry.
    """

    def __init__(self, message: str, retrace: Any = None) -> None:
        super().__init__(message)
        self.retrace = retrace


class MismatchError(SpecKeyError, RuntimeError):
    """An entry's result is not that of a program compiled afresh for the same inputs (see ``speckey.check``).

    Attributes:
        entry: the entry.
    """

    def __init__(self, message: str, entry: Any = None) -> None:
        super().__init__(message)
        self.entry = entry


class ProfileError(SpecKeyError, ValueError):
    """A file is not a profile that this version can replay."""
