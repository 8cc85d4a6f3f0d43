"""Save for which inputs entries were made, and compile for them in a later process."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

from speckey import inputs, torch_private
from speckey.compiler import Entry
from speckey.dispatch import table_of
from speckey.errors import EntryLimitError, ProfileError

FORMAT, VERSION = "speckey profile", 1


def save_profile(jfn: Any, path: str | os.PathLike) -> int:
    """Write for which inputs the entries of a compiled callable were made: JSON, without values of tensors or code.

    Entries whose inputs have arguments that JSON has no word for (objects of a class of one's own, say) are left
    out, with a warning that names the argument.

    Returns:
        How many entries are in the file.

    Raises:
        TypeError: ``jfn`` was not compiled with a ``SpecKeyCache``.
        OSError: the file cannot be written.
    """
    table = table_of(jfn)
    records = []
    for entry in tuple(table.entries):
        if isinstance(entry.inputs, str):
            warnings.warn(f"entry {entry.number} of {table.name} is not in the profile: {entry.inputs}", stacklevel=2)
        else:
            records.append(entry.inputs)
    profile = {"format": FORMAT, "version": VERSION, "function": table.name, "entries": records}
    text = json.dumps(profile, indent=1, allow_nan=False)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text + "\n")
    return len(records)


def replay_profile(jfn: Any, path: str | os.PathLike, *, progress: bool | None = None) -> tuple[Entry, ...]:
    """Compile for the inputs of a profile that ``save_profile`` wrote, in its order; no program is run.

    Grad mode, inference mode, autocast, the default dtype and device, and whether a module is training, are for each
    entry as they were, and afterwards as they are now.  Inputs that do not compile any more are skipped with a warning.

    Args:
        jfn: the compiled callable.
        path: the file.
        progress: whether to show a progress bar on stderr; None: if that is a terminal.

    Returns:
        The entries that serve these inputs, without those skipped.

    Raises:
        TypeError: ``jfn`` was not compiled with a ``SpecKeyCache``.
        ProfileError: the file is damaged, or no profile, or of another version, or for other devices; then nothing
            is compiled.
        EntryLimitError: there is no room for another entry, and none may be dropped.
        OSError: the file cannot be read.
    """
    table = table_of(jfn)
    records = _read(path)
    show = _progress_bar(len(records)) if (sys.stderr.isatty() if progress is None else progress) else _no_bar
    entries: list[Entry] = []
    for number, data in enumerate(records):
        show(number)
        with torch_private.no_fake_mode():
            args, kwargs = inputs.made(data)
            try:
                with inputs.surroundings(data, table.fn):
                    entries.append(table.warm_up(args, kwargs))
            except EntryLimitError:
                raise
            except Exception as error:
                text = f"entries[{number}] of {os.fspath(path)} does not compile: {type(error).__name__}: {error}"
                warnings.warn(text, stacklevel=2)
    show(len(records))
    return tuple(dict.fromkeys(entries))


def _read(path: str | os.PathLike) -> list[dict[str, Any]]:
    """The records of a profile, all of them valid."""
    with open(path, "rb") as file:
        text = file.read()
    try:
        profile = json.loads(text.decode("utf-8"))
        if not isinstance(profile, dict) or profile.get("format") != FORMAT:
            raise ProfileError(f"{os.fspath(path)} is not a profile of speckey")
        if type(profile.get("version")) is not int or profile["version"] != VERSION:
            version = profile.get("version")
            raise ProfileError(f"{os.fspath(path)} has version {version!r}; this speckey reads version {VERSION}")
        records = profile.get("entries")
        if not isinstance(records, list):
            raise ValueError(f"entries: expected a list, found {records!r}")
        for number, data in enumerate(records):
            inputs.validate(data, f"entries[{number}]")
    except ProfileError:
        raise
    except (ValueError, RecursionError) as error:  # also what json and decode raise
        raise ProfileError(f"{os.fspath(path)} is damaged: {error}") from error
    return records


def _no_bar(done: int) -> None:
    pass


def _progress_bar(total: int) -> Callable[[int], None]:
    start = time.perf_counter()
    width = 30

    def show(done: int) -> None:
        filled = width if total == 0 else width * done // total
        seconds = time.perf_counter() - start
        end = "\n" if done == total else ""
        bar = "#" * filled + "." * (width - filled)
        print(f"\rspeckey: [{bar}] {done}/{total} compiled, {seconds:.0f} s", end=end, file=sys.stderr, flush=True)

    return show
