"""Imports thunder on torch versions that dropped methods which thunder 0.2.6 lists by name.

Knows nothing else of thunder.  Everything that does imports this module first.
"""

from __future__ import annotations

import importlib.metadata
import sys

THUNDER_SUPPORTED = "0.2.6"
TORCH_SUPPORTED = ((2, 9), (2, 14))  # at least, below

# thunder's table of automatically registered torch ops names these methods; torch 2.13 removed them.
_REMOVED_IN_TORCH_2_13 = ("align_as", "align_to", "has_names", "refine_names", "rename")


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _check_versions() -> None:
    thunder_version = _version("lightning-thunder")
    torch_version = _version("torch")
    numbers = tuple(int(part) for part in torch_version.split("+")[0].split(".")[:2] if part.isdigit())
    if thunder_version != THUNDER_SUPPORTED or not TORCH_SUPPORTED[0] <= numbers < TORCH_SUPPORTED[1]:
        low, high = (".".join(map(str, bound)) for bound in TORCH_SUPPORTED)
        raise ImportError(
            f"speckey works with lightning-thunder {THUNDER_SUPPORTED} and torch >={low},<{high}; "
            f"found lightning-thunder {thunder_version} and torch {torch_version}."
        )


def _placeholder(name: str):
    def removed(self, *args, **kwargs):
        raise AttributeError(f"torch.Tensor.{name} does not exist in this version of torch")

    # thunder checks that the name of the function is the name it is found under.
    removed.__name__ = removed.__qualname__ = name
    return removed


def import_thunder():
    """Return the module ``thunder``, importing it if needed.

    Raises:
        ImportError: the installed torch or lightning-thunder is not supported; names both versions.
    """
    if "thunder" in sys.modules and hasattr(sys.modules["thunder"], "jit"):
        _check_versions()
        return sys.modules["thunder"]
    _check_versions()
    import torch

    missing = [name for name in _REMOVED_IN_TORCH_2_13 if not hasattr(torch.Tensor, name)]
    for name in missing:
        setattr(torch.Tensor, name, _placeholder(name))
    try:
        import thunder
    finally:
        for name in missing:
            delattr(torch.Tensor, name)
    return thunder


thunder = import_thunder()
