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
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

try:
    from torch._C import _is_any_autocast_enabled, _len_torch_function_stack, _set_grad_enabled
    from torch._C._dynamo.guards import TensorGuards, dict_version

    dict_version({})
    available = True
except (ImportError, RuntimeError, AttributeError):
    available = False

try:
    from torch._dynamo.source import ConstantSource
    from torch._guards import detect_fake_mode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.value_ranges import ValueRanges

    symbolic_fakes = True
except ImportError:
    symbolic_fakes = False


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
    try:
        _set_grad_enabled(True)  # elsewhere torch's check does not look at requires_grad
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
        try:
            _set_grad_enabled(True)
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


class FakeSizes:
    """Symbolic sizes for the kernels of fake tensors, which tell what they assumed of them.

    The plain way is to give those kernels plain sizes.

    Attributes:
        names: what each of torch's symbols was made for.
    """

    def __init__(self) -> None:
        # Sizes of 0 and 1 are no special cases, and equal ones are not taken for the same.
        self.env = ShapeEnv(specialize_zero_one=False, duck_shape=False)
        self.names: dict[Any, Any] = {}
        self._sizes: dict[Any, torch.SymInt] = {}

    @classmethod
    def current(cls) -> FakeSizes | None:
        """Those of the ``FakeTensorMode`` that is on; None where this torch lacks what it takes."""
        mode = detect_fake_mode() if symbolic_fakes else None
        if mode is None:
            return None
        if mode.shape_env is None:
            sizes = cls()
            mode.shape_env = sizes.env
            sizes.env._speckey_sizes = sizes
        return getattr(mode.shape_env, "_speckey_sizes", None)

    @classmethod
    def of(cls, value: torch.Tensor | torch.SymInt) -> FakeSizes | None:
        """Those that a fake tensor or a symbolic integer was computed from."""
        env = value.fake_mode.shape_env if isinstance(value, FakeTensor) else value.node.shape_env
        return getattr(env, "_speckey_sizes", None)

    def size(self, name: Any, value: int, low: float, high: float) -> torch.SymInt:
        """The symbolic integer called ``name``, which is ``value`` now and always within the bounds."""
        known = self._sizes.get(name)
        if known is None:
            source = ConstantSource(f"n{len(self._sizes)}")
            symbol = self.env.create_symbol(
                value, source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None, positive=None
            )
            bounds = [-int_oo if low == -float("inf") else int(low), int_oo if high == float("inf") else int(high)]
            self.env.var_to_range[symbol] = ValueRanges(*bounds)
            self.names[symbol] = name
            known = self._sizes[name] = self.env.create_symintnode(symbol, hint=value, source=source)
        return known

    def assumed(self) -> list[Any]:
        """The sympy relations that the kernels have taken for granted."""
        return [guard.expr for guard in self.env.guards]

    @staticmethod
    def term(number: torch.SymInt) -> Any:
        """A symbolic integer as a sympy expression."""
        return number.node.expr

    @staticmethod
    def hint(number: torch.SymInt) -> int:
        return int(number.node.hint)


@contextlib.contextmanager
def plain_way() -> Iterator[None]:
    """Do without any of this, for tests."""
    global available, symbolic_fakes
    before, available, symbolic_fakes = (available, symbolic_fakes), False, False
    try:
        yield
    finally:
        available, symbolic_fakes = before


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether it is one of torch's fake tensors, which have a shape and no memory."""
    return isinstance(tensor, FakeTensor)


def no_fake_mode() -> contextlib.AbstractContextManager:
    """Make real tensors, also inside of a ``FakeTensorMode``."""
    return unset_fake_temporarily()
