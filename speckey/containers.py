"""The arguments of a call once more, with other tensors in the same containers.

Looks into what a signature looks into, so that the new arguments have the signature of the old ones where
their tensors do.  Containers that occur twice are rebuilt once, and so are tensors.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from speckey.signature import has_fields_only, is_read_as_usual


def rebuilt(value: Any, replace: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """``value`` with ``replace(tensor)`` in the place of each tensor, in new containers."""
    return _rebuilt(value, replace, {})


def _rebuilt(value: Any, replace: Callable, done: dict[int, tuple[Any, Any]]) -> Any:
    if id(value) in done:
        return done[id(value)][1]
    new = _made(value, replace, done)
    if new is not value:
        done[id(value)] = value, new  # the old one as well: its id must not be given to another
    return new


def _made(value: Any, replace: Callable, done: dict) -> Any:
    if isinstance(value, torch.Tensor):
        return replace(value)
    kind = type(value)
    if isinstance(value, (tuple, list, dict)):
        if kind is torch.Size or not is_read_as_usual(kind):
            return value
        if isinstance(value, dict):
            new = {} if kind is dict else copy.copy(value)
            for key in value:
                dict.__setitem__(new, key, _rebuilt(value[key], replace, done))
            return new
        items = [_rebuilt(item, replace, done) for item in value]
        if isinstance(value, list):
            new = [] if kind is list else copy.copy(value)
            list.__setitem__(new, slice(None), items)
            return new
        if kind is tuple:
            return tuple(items)
        new = tuple.__new__(kind, items)
        if hasattr(value, "__dict__"):
            new.__dict__.update(value.__dict__)
        return new
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and has_fields_only(value):
        new = copy.copy(value)
        for field in dataclasses.fields(value):
            new.__dict__[field.name] = _rebuilt(value.__dict__[field.name], replace, done)
        return new
    return value


class Copies:
    """Copies of tensors that share memory where the originals do, with the same strides.

    A copy is a leaf, and requires grad where the original does.
    """

    def __init__(self) -> None:
        self.made: list[torch.Tensor] = []
        self._storages: dict[tuple[torch.device, int], torch.UntypedStorage] = {}

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            plain = not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
            if type(tensor) is torch.Tensor and tensor.layout is torch.strided and plain:
                storage = tensor.untyped_storage()
                key = tensor.device, storage.data_ptr()
                if key not in self._storages:
                    self._storages[key] = storage.clone()
                new = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
                new.set_(self._storages[key], tensor.storage_offset(), tensor.shape, tensor.stride())
            else:
                new = copy.deepcopy(tensor.detach() if not tensor.is_leaf else tensor)
        new.requires_grad_(tensor.requires_grad)
        if tensor.is_leaf and tensor.grad is not None and new.grad is None:
            new.grad = tensor.grad.detach().clone()
        new.__dict__.update(tensor.__dict__)
        self.made.append(new)
        return new
