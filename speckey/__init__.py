"""A cache for lightning-thunder that finds compiled programs by their specialization key.

Importing it makes ``thunder.jit`` accept ``cache=SpecKeyCache()``.
"""

import os

from speckey import logs
from speckey.cache import SpecKeyCache, clear, entries
from speckey.compiler import Entry
from speckey.errors import (
    BoundsError,
    EntryLimitError,
    MismatchError,
    ProfileError,
    RetraceError,
    SpecKeyError,
)
from speckey.key import SpecKey
from speckey.policies import (
    LRU,
    AllDims,
    Automatic,
    AutomaticNumbers,
    ConstantNumbers,
    Dim,
    Dims,
    Divisible,
    Eager,
    Exact,
    Refuse,
    SymbolicNumbers,
    Unbounded,
)
from speckey.profile import replay_profile, save_profile
from speckey.recorder import Fact
from speckey.report import Report, explain
from speckey.retrace import Retrace
from speckey.stance import stance
from speckey.verify import check
from speckey.warmup import warmup

logs.configure(os.environ.get("SPECKEY_LOGS"))

__all__ = [
    "LRU",
    "AllDims",
    "Automatic",
    "AutomaticNumbers",
    "BoundsError",
    "ConstantNumbers",
    "Dim",
    "Dims",
    "Divisible",
    "Eager",
    "Entry",
    "EntryLimitError",
    "Exact",
    "Fact",
    "MismatchError",
    "ProfileError",
    "Refuse",
    "Report",
    "Retrace",
    "RetraceError",
    "SpecKey",
    "SpecKeyCache",
    "SpecKeyError",
    "SymbolicNumbers",
    "Unbounded",
    "check",
    "clear",
    "entries",
    "explain",
    "replay_profile",
    "save_profile",
    "stance",
    "warmup",
]
__version__ = "0.1.0"
