"""torch's private functions that make a hit quick, each with a plain way beside it.

Every one answers "certainly the same as before" or "look closely": an answer that is not the quick one
costs time, never a wrong hit.  ``available`` is False where this torch or Python lacks one of them, and
then callers take the plain way everywhere.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.utils._device as _device

try:
    from torch._C import _is_any_autocast_enabled, _len_torch_function_stack, _set_grad_enabled
    from torch._C._dynamo.guards import TensorGuards, dict_version

    dict_version({})
    available = True
except (ImportError, RuntimeError, AttributeError):
    available = False


def _plain_autocast() -> bool:
    return torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")


def autocast_is_on() -> Callable[[], bool]:
    """A function that says whether autocast is on for any device."""
    return _is_any_autocast_enabled if available else _plain_autocast


def _plain_set_grad_enabled(mode: bool) -> None:
    torch.set_grad_enabled(mode)


def set_grad_enabled() -> Callable[[bool], Any]:
    """A function that switches autograd on or off in this thread, without a context manager."""
    return _set_grad_enabled if available else _plain_set_grad_enabled


def default_device_may_differ() -> bool:
    """Whether ``torch.get_default_device()`` may be anything but the CPU.

    A default device is a mode on torch's stack of function modes, and known to ``torch.utils._device``.
    """
    if not available:
        return True
    return _len_torch_function_stack() != 0 or _device.CURRENT_DEVICE is not None


def tensor_check(tensors: Sequence[torch.Tensor], *, sizes: bool) -> Callable[..., bool] | None:
    """A function of as many tensors: False unless each surely is like the one in its place.

    Like: of the same type, dtype, device, layout, rank and requires_grad, and with ``sizes`` of the same
    sizes.  None where torch has no such thing.
    """
    if not available or not tensors:
        return None
    grad_mode = torch.is_grad_enabled()
    _set_grad_enabled(True)  # elsewhere torch's check does not look at requires_grad
    try:
        check = TensorGuards(
            *tensors,
            dynamic_dims_sizes=[list(t.shape) if sizes else [None] * t.dim() for t in tensors],
            dynamic_dims_strides=[[None] * t.dim() for t in tensors],
        ).check
    except (TypeError, RuntimeError):
        return None
    finally:
        _set_grad_enabled(grad_mode)
    if grad_mode:
        return check

    def check_without_grad_mode(*tensors: torch.Tensor) -> bool:
        _set_grad_enabled(True)
        try:
            return check(*tensors)
        finally:
            _set_grad_enabled(False)

    return check_without_grad_mode


def version_of(values: dict) -> int:
    """A number that changes whenever a key of the dict is set to another object, or deleted."""
    return dict_version(values)


def dict_of_type(kind: type) -> dict:
    """The dict in which a class keeps its attributes, which Python shows through a read-only proxy."""
    (namespace,) = gc.get_referents(kind.__dict__)
    return namespace


@contextlib.contextmanager
def plain_way() -> Iterator[None]:
    """Do without any of this, for tests."""
    global available
    before, available = available, False
    try:
        yield
    finally:
        available = before
