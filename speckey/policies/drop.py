"""What becomes of a call that needs one more entry, when there are many.

A policy is an object with a method ``room``, asked before a call is compiled; write your own by giving a
class one::

    class DropCheapest:
        def room(self, entries):
            if len(entries) < 64:
                return Room()
            return Room(drop=[min(entries, key=lambda entry: entry.compile_seconds)])
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import attrs


class Counted(Protocol):
    """What there is to know of an entry; ``speckey.Entry`` has more.

    Attributes:
        hits: how many calls it has served after the one that it was compiled for.
        used: when it last served one: a number that grows from call to call.
        compile_seconds: what tracing and compiling took, in seconds.
    """

    hits: int
    used: int
    compile_seconds: float


@attrs.frozen
class Room:
    """What becomes of a call that no entry fits.

    Attributes:
        drop: entries that are forgotten once the call is compiled.
        instead: None to compile the call; "error" for an ``EntryLimitError``; "eager" to run the original
            function uncompiled.

    Raises:
        ValueError: ``instead`` is another word.
    """

    drop: Collection[Any] = ()
    instead: Literal["error", "eager"] | None = None

    def __attrs_post_init__(self) -> None:
        if self.instead not in (None, "error", "eager"):
            raise ValueError(f"Room(instead=...) expects None, 'error' or 'eager', got {self.instead!r}")


@runtime_checkable
class Drop(Protocol):
    """What to drop."""

    def room(self, entries: Sequence[Counted]) -> Room:
        """What becomes of a call that needs an entry beside these.

        Args:
            entries: those of the callable, oldest first.
        """
        ...


def _at_least_one(instance: Any, attribute: Any, value: int) -> None:
    name = type(instance).__name__
    if type(value) is not int:
        raise TypeError(f"{name}(max_entries=...) expects an int, got {value!r}")
    if value < 1:
        raise ValueError(f"{name}(max_entries=...) expects at least 1, got {value}")


@attrs.frozen
class LRU:
    """At most ``max_entries``: the least recently used is dropped. The default, with 256."""

    max_entries: int = attrs.field(default=256, validator=_at_least_one)

    def room(self, entries: Sequence[Counted]) -> Room:
        excess = len(entries) + 1 - self.max_entries
        return Room(drop=sorted(entries, key=lambda entry: entry.used)[:excess]) if excess > 0 else Room()


@attrs.frozen
class Unbounded:
    """Nothing is dropped."""

    def room(self, entries: Sequence[Counted]) -> Room:
        return Room()


@attrs.frozen
class Refuse:
    """At most ``max_entries``: a call that needs another is an ``EntryLimitError``."""

    max_entries: int = attrs.field(validator=_at_least_one)

    def room(self, entries: Sequence[Counted]) -> Room:
        return Room(instead="error" if len(entries) >= self.max_entries else None)


@attrs.frozen
class Eager:
    """At most ``max_entries``: a call that needs another runs the original function uncompiled."""

    max_entries: int = attrs.field(validator=_at_least_one)

    def room(self, entries: Sequence[Counted]) -> Room:
        return Room(instead="eager" if len(entries) >= self.max_entries else None)


def checked_room(policy: Any, entries: Sequence[Counted]) -> Room:
    """What a policy says, which must be a ``Room``."""
    answer = policy.room(entries)
    if not isinstance(answer, Room):
        raise TypeError(f"{type(policy).__name__}.room() is to return a speckey.policies.Room, got {answer!r}")
    return answer
