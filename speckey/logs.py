"""The logger ``speckey``, and ``SPECKEY_LOGS``, which switches it on from the environment.

``speckey`` has a line for each compile with its reason (INFO) and the facts of its key (DEBUG);
``speckey.code`` has the generated look-up code as it is written (DEBUG).
"""

from __future__ import annotations

import logging
import warnings

LOGGER = logging.getLogger("speckey")
CODE = logging.getLogger("speckey.code")

WORDS = ("retraces", "facts", "code")


def configure(text: str | None) -> None:
    """Do what ``SPECKEY_LOGS`` says: print to stderr what its words, separated by commas, name.

    ``retraces``: one line per compile, with the reason.  ``facts``: the same, with the facts of the key.
    ``code``: the generated look-up code as it is written.  A word that is none of these is a warning.
    """
    words = {word.strip().lower() for word in (text or "").split(",")} - {""}
    unknown = sorted(words.difference(WORDS))
    if unknown:
        warnings.warn(
            f"SPECKEY_LOGS={text}: unknown {', '.join(map(repr, unknown))}; the words are {', '.join(WORDS)}",
            stacklevel=2,
        )
    words.intersection_update(WORDS)
    if not words:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("[%(name)s] %(message)s"))
    LOGGER.addHandler(handler)
    LOGGER.propagate = False  # else a program that sets up logging of its own sees each line twice
    LOGGER.setLevel(logging.DEBUG if "facts" in words else logging.INFO if "retraces" in words else logging.WARNING)
    CODE.setLevel(logging.DEBUG if "code" in words else logging.WARNING)
