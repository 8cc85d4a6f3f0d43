"""A cache for lightning-thunder that finds compiled programs by their specialization key.

Importing it makes ``thunder.jit`` accept ``cache=SpecKeyCache()``.
"""

from speckey.cache import SpecKeyCache, entries
from speckey.compiler import Entry
from speckey.key import SpecKey
from speckey.recorder import Fact

__all__ = ["Entry", "Fact", "SpecKey", "SpecKeyCache", "entries"]
__version__ = "0.1.0.dev0"
