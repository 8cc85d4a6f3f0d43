"""A cache for lightning-thunder that finds compiled programs by their specialization key.

Importing it makes ``thunder.jit`` accept ``cache=SpecKeyCache()``.
"""

from speckey.cache import SpecKeyCache, entries
from speckey.compiler import Entry
from speckey.key import SpecKey
from speckey.recorder import Fact
from speckey.report import Report, explain

__all__ = ["Entry", "Fact", "Report", "SpecKey", "SpecKeyCache", "entries", "explain"]
__version__ = "0.1.0.dev0"
