"""Compile ahead of a call."""

from __future__ import annotations

from typing import Any

import torch

from speckey import torch_private
from speckey.compiler import Entry
from speckey.containers import rebuilt
from speckey.dispatch import table_of
from speckey.inputs import hollow


def warmup(jfn: Any, /, *args: Any, **kwargs: Any) -> Entry:
    """Compile for these inputs without running the program; no hit is counted.

    Tensors may stand for others where only shapes are known: a tensor on the meta device for one of its shape and
    dtype on the device of the module's parameters, else on the default device; a ``FakeTensor`` for one on the
    device that it pretends to be on.  Neither takes memory.

    Returns:
        The entry that serves calls with such inputs: a new one, or one that there was.

    Raises:
        TypeError: ``jfn`` was not compiled with a ``SpecKeyCache``.
        EntryLimitError: there is no room for another entry, and none may be dropped.
        ValueError: no entry can serve a second call with these inputs (a generator, say).
        Whatever compiling the call raises.
    """
    table = table_of(jfn)
    device = _device(table.fn)
    done: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def real(tensor: torch.Tensor) -> torch.Tensor:
        fake = torch_private.is_fake(tensor)
        if not fake and (tensor.device.type != "meta" or type(tensor) is not torch.Tensor):
            return tensor
        if id(tensor) not in done:
            sizes = [int(size) for size in tensor.shape]
            where = tensor.device if fake and tensor.device.type != "meta" else device
            done[id(tensor)] = tensor, hollow(sizes, tensor.dtype, where).requires_grad_(tensor.requires_grad)
        return done[id(tensor)][1]

    with torch_private.no_fake_mode():
        standing = rebuilt((args, kwargs), real)
        args, kwargs = standing if done else (args, kwargs)
        return table.warm_up(args, kwargs)


def _device(fn: Any) -> torch.device:
    """Where a meta tensor's real one will be."""
    parameters = fn.parameters() if isinstance(fn, torch.nn.Module) else iter(())
    first = next(parameters, None)
    return torch.get_default_device() if first is None else first.device
