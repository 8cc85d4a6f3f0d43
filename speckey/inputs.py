"""The inputs of a call as plain data that JSON can hold, and such inputs made anew: with the same signature and
shapes, and nothing in the tensors.

Data is validated as a whole before anything is made of it.
"""

from __future__ import annotations

import contextlib
import math
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch

from speckey.key import names_of_parameters, path_text


class Inexpressible(Exception):
    """Plain data has no word for an argument; the message names it."""


DTYPES = {str(v).removeprefix("torch."): v for v in vars(torch).values() if isinstance(v, torch.dtype)}
_CONTAINERS = {"list": list, "tuple": tuple, "Size": torch.Size}
_MAPPINGS = {"dict": dict, "OrderedDict": OrderedDict}


# -- to data ---------------------------------------------------------------------------------------


def record(fn: Any, args: tuple, kwargs: dict) -> dict[str, Any]:
    """The arguments and the state of torch around them.

    Raises:
        Inexpressible: an argument is something that plain data cannot stand for.
    """
    writer = _Writer(names_of_parameters(fn, args, kwargs))
    return {
        "args": [writer.data(value, ("item", ("args",), i)) for i, value in enumerate(args)],
        "kwargs": {key: writer.data(value, ("item", ("kwargs",), key)) for key, value in kwargs.items()},
        "torch": {
            "grad_mode": torch.is_grad_enabled(),
            "inference_mode": torch.is_inference_mode_enabled(),
            "default_dtype": _text(torch.get_default_dtype()),
            "default_device": str(torch.get_default_device()),
            "autocast": {d: _text(torch.get_autocast_dtype(d)) for d in _AUTOCAST if torch.is_autocast_enabled(d)},
        },
        "training": _training(fn),
    }


_AUTOCAST = ("cpu", "cuda")


def _training(fn: Any) -> bool | None:
    """Whether all of a module is in training mode, or none; None where it is mixed, and for functions."""
    modes = {module.training for module in fn.modules()} if isinstance(fn, torch.nn.Module) else set()
    return modes.pop() if len(modes) == 1 else None


def _text(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class _Writer:
    def __init__(self, names: dict) -> None:
        self._names = names
        self._met: dict[int, int] = {}  # containers, by the order in which they are met
        self._storages: dict[int, int] = {}

    def data(self, value: Any, path: tuple) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return {"kind": "float", "value": value.hex()}
        if kind is complex:
            return {"kind": "complex", "value": [value.real.hex(), value.imag.hex()]}
        if kind is bytes:
            return {"kind": "bytes", "value": value.hex()}
        if value is Ellipsis:
            return {"kind": "..."}
        if kind is torch.dtype:
            return {"kind": "dtype", "value": _text(value)}
        if kind is torch.device:
            return {"kind": "device", "value": str(value)}
        if kind is torch.Tensor:
            return self.tensor(value, path)
        if kind is slice:
            parts = [self.data(v, ("attr", path, n)) for n, v in zip(_SLICE, _parts(value), strict=True)]
            return {"kind": "slice", "value": parts}
        name = kind.__name__
        if _CONTAINERS.get(name) is kind or _MAPPINGS.get(name) is kind:
            return self.container(value, name, path)
        raise self.no_word(path, name)

    def container(self, value: Any, name: str, path: tuple) -> Any:
        if id(value) in self._met:
            return {"kind": "same", "value": self._met[id(value)]}
        self._met[id(value)] = len(self._met)
        if isinstance(value, dict):
            if vars(value) if hasattr(value, "__dict__") else False:
                raise self.no_word(path, f"{name} with attributes")
            items = []
            for key, item in value.items():
                below = ("item", path, key)
                if type(key) not in (str, int, bool, float) and key is not None:
                    raise self.no_word(below, f"value with a {type(key).__name__} as its key")
                items.append([self.data(key, below), self.data(item, below)])
            return {"kind": name, "value": items}
        return {"kind": name, "value": [self.data(item, ("item", path, i)) for i, item in enumerate(value)]}

    def tensor(self, tensor: torch.Tensor, path: tuple) -> dict[str, Any]:
        if tensor.layout is not torch.strided or tensor.__dict__ or tensor.is_quantized or tensor.is_nested:
            raise self.no_word(path, "tensor out of the ordinary")
        data: dict[str, Any] = {
            "kind": "tensor",
            "shape": list(tensor.shape),
            "dtype": _text(tensor.dtype),
            "device": str(tensor.device),
            "requires_grad": tensor.requires_grad,
        }
        if tensor.numel() and tensor.device.type != "meta":
            address = tensor.untyped_storage().data_ptr()
            memory = self._storages.setdefault(address, len(self._storages))
            data["memory"] = memory
        if tensor.is_leaf and tensor.grad is not None:
            data["grad"] = self.tensor(tensor.grad, ("attr", path, "grad"))
        return data

    def no_word(self, path: tuple, what: str) -> Inexpressible:
        return Inexpressible(f"`{path_text(path, self._names)}` is a {what}")


_SLICE = ("start", "stop", "step")


def _parts(value: slice) -> tuple:
    return value.start, value.stop, value.step


# -- from data -------------------------------------------------------------------------------------


def validate(data: Any, where: str) -> None:
    """That ``data`` is what ``record`` writes, and can be made here.

    Raises:
        ValueError: it is not; the message says where.
    """
    _expect(isinstance(data, dict), where, "an object", data)
    for key, kind in (("args", list), ("kwargs", dict), ("torch", dict)):
        _expect(isinstance(data.get(key), kind), f"{where}.{key}", f"a {kind.__name__}", data.get(key))
    training = data.get("training")
    _expect(training is None or type(training) is bool, f"{where}.training", "true, false or null", training)
    state = data["torch"]
    for key in ("grad_mode", "inference_mode"):
        _expect(type(state.get(key)) is bool, f"{where}.torch.{key}", "true or false", state.get(key))
    _dtype(state.get("default_dtype"), f"{where}.torch.default_dtype")
    _expect(DTYPES[state["default_dtype"]].is_floating_point, f"{where}.torch.default_dtype", "a float", state)
    _device(state.get("default_device"), f"{where}.torch.default_device")
    autocast = state.get("autocast")
    _expect(isinstance(autocast, dict), f"{where}.torch.autocast", "an object", autocast)
    for device, dtype in autocast.items():
        _expect(device in _AUTOCAST, f"{where}.torch.autocast", "the devices cpu and cuda", device)
        _dtype(dtype, f"{where}.torch.autocast.{device}")
    checker = _Checker()
    for i, value in enumerate(data["args"]):
        checker.value(value, f"{where}.args[{i}]")
    for key, value in data["kwargs"].items():
        checker.value(value, f"{where}.kwargs.{key}")


def _expect(holds: bool, where: str, what: str, found: Any) -> None:
    if not holds:
        text = repr(found)
        raise ValueError(f"{where}: expected {what}, found {text if len(text) <= 80 else text[:77] + '...'}")


def _dtype(value: Any, where: str) -> None:
    _expect(isinstance(value, str) and value in DTYPES, where, "a dtype of torch", value)


def _device(value: Any, where: str) -> None:
    try:
        device = torch.device(value) if isinstance(value, str) else None
    except RuntimeError:
        device = None
    _expect(device is not None, where, "a device", value)
    there = device.type in ("cpu", "meta") or (  # type: ignore[union-attr]
        device.type == torch.accelerator.current_accelerator().type  # type: ignore[union-attr]
        and (device.index or 0) < torch.accelerator.device_count()  # type: ignore[union-attr]
        if torch.accelerator.is_available()
        else False
    )
    _expect(there, where, "a device of this machine", value)


class _Checker:
    def __init__(self) -> None:
        self._met: list[bool] = []  # of each container: whether it is complete

    def value(self, data: Any, where: str) -> None:
        if data is None or type(data) in (bool, int, str):
            return
        _expect(isinstance(data, dict), where, "a value", data)
        kind, value = data.get("kind"), data.get("value")
        if kind == "tensor":
            self.tensor(data, where)
        elif kind == "float":
            _hexadecimal(value, where)
        elif kind == "complex":
            _expect(isinstance(value, list) and len(value) == 2, where, "two numbers", value)
            for part in value:
                _hexadecimal(part, where)
        elif kind == "bytes":
            with _as_error(where, "bytes in hexadecimal", value):
                bytes.fromhex(value)
        elif kind == "dtype":
            _dtype(value, where)
        elif kind == "device":
            with _as_error(where, "a device", value):
                torch.device(value if isinstance(value, str) else None)
        elif kind == "slice":
            _expect(isinstance(value, list) and len(value) == 3, where, "three parts of a slice", value)
            for part in value:
                self.value(part, where)
        elif kind == "same":
            known = type(value) is int and 0 <= value < len(self._met) and self._met[value]
            _expect(known, where, "the number of a container before it", value)
        elif isinstance(kind, str) and kind in (*_CONTAINERS, *_MAPPINGS):
            self.container(kind, value, where)
        else:
            _expect(kind == "...", where, "a known kind of value", kind)

    def container(self, kind: str, value: Any, where: str) -> None:
        _expect(isinstance(value, list), f"{where}.value", "a list", value)
        number = len(self._met)
        self._met.append(False)
        for i, item in enumerate(value):
            if kind in _MAPPINGS:
                _expect(isinstance(item, list) and len(item) == 2, f"{where}.value[{i}]", "a key and a value", item)
                key = item[0]
                is_float = isinstance(key, dict) and key.get("kind") == "float"
                _expect(not isinstance(key, (dict, list)) or is_float, f"{where}.value[{i}]", "a plain key", key)
                self.value(key, f"{where}.value[{i}]")
                item = item[1]
            if kind == "Size":
                _size(item, f"{where}.value[{i}]")
            self.value(item, f"{where}.value[{i}]")
        self._met[number] = True

    def tensor(self, data: dict, where: str) -> None:
        _expect(isinstance(data.get("shape"), list), f"{where}.shape", "a list of sizes", data.get("shape"))
        for size in data["shape"]:
            _size(size, f"{where}.shape")
        _expect(math.prod(data["shape"]) < 2**62, f"{where}.shape", "sizes that torch can count", data["shape"])
        _dtype(data.get("dtype"), f"{where}.dtype")
        _device(data.get("device"), f"{where}.device")
        requires_grad, dtype = data.get("requires_grad"), DTYPES[data["dtype"]]
        _expect(type(requires_grad) is bool, f"{where}.requires_grad", "true or false", requires_grad)
        differentiable = dtype.is_floating_point or dtype.is_complex
        _expect(differentiable or not requires_grad, f"{where}.requires_grad", f"false for {dtype}", requires_grad)
        memory = data.get("memory")
        _expect(memory is None or (type(memory) is int and memory >= 0), f"{where}.memory", "a number", memory)
        if data.get("grad") is not None:
            grad = data["grad"]
            _expect(isinstance(grad, dict) and grad.get("grad") is None, f"{where}.grad", "a tensor", grad)
            self.tensor(grad, f"{where}.grad")
            same = all(grad[key] == data[key] for key in ("shape", "dtype", "device"))
            _expect(same and requires_grad, f"{where}.grad", "a gradient of the tensor", grad)


def _size(value: Any, where: str) -> None:
    _expect(type(value) is int and 0 <= value < 2**62, where, "a size", value)


def _hexadecimal(value: Any, where: str) -> None:
    with _as_error(where, "a number in hexadecimal", value):
        float.fromhex(value)


@contextlib.contextmanager
def _as_error(where: str, what: str, value: Any) -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError, OverflowError, RuntimeError):
        _expect(False, where, what, value)


def made(data: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Arguments as ``record`` met them, for data that is valid."""
    maker = _Maker()
    args = tuple(maker.value(value) for value in data["args"])
    return args, {key: maker.value(value) for key, value in data["kwargs"].items()}


class _Maker:
    def __init__(self) -> None:
        self._met: list[Any] = []
        self._storages: dict[int, torch.UntypedStorage] = {}

    def value(self, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        kind, value = data["kind"], data.get("value")
        if kind == "tensor":
            return self.tensor(data)
        if kind in _MAPPINGS:
            mapping = _MAPPINGS[kind]()
            self._met.append(mapping)
            mapping.update((self.value(key), self.value(item)) for key, item in value)
            return mapping
        if kind in _CONTAINERS:
            number = len(self._met)
            self._met.append(None)
            self._met[number] = _CONTAINERS[kind]([self.value(item) for item in value])
            return self._met[number]
        if kind == "same":
            return self._met[value]
        if kind == "slice":
            return slice(*map(self.value, value))
        return _SIMPLE[kind](value)

    def tensor(self, data: dict[str, Any]) -> torch.Tensor:
        memory = data.get("memory")
        tensor = hollow(
            data["shape"], DTYPES[data["dtype"]], torch.device(data["device"]), self._storages.get(memory)
        ).requires_grad_(data["requires_grad"])
        if memory is not None:
            self._storages.setdefault(memory, tensor.untyped_storage())
        if data.get("grad") is not None:
            tensor.grad = self.tensor(data["grad"])
        return tensor


_SIMPLE = {
    "float": float.fromhex,
    "complex": lambda parts: complex(*map(float.fromhex, parts)),
    "bytes": bytes.fromhex,
    "...": lambda value: Ellipsis,
    "dtype": DTYPES.get,
    "device": torch.device,
}


def hollow(
    shape: Any, dtype: torch.dtype, device: torch.device, storage: torch.UntypedStorage | None = None
) -> torch.Tensor:
    """A tensor of any shape with room for one element, to be traced with, not to be computed with."""
    tensor = torch.empty(0, dtype=dtype, device=device)
    if storage is None:
        storage = torch.empty(16, dtype=torch.uint8, device=device).untyped_storage()
    return tensor.set_(storage, 0, tuple(shape), (0,) * len(shape))


@contextlib.contextmanager
def surroundings(data: dict[str, Any], fn: Any) -> Iterator[None]:
    """The state of torch, and whether the module is training, as ``record`` met them."""
    state = data["torch"]
    modules = [] if data["training"] is None or not isinstance(fn, torch.nn.Module) else list(fn.modules())
    training = [module.training for module in modules]
    before = torch.get_default_dtype()
    with contextlib.ExitStack() as stack:
        if torch.device(state["default_device"]) != torch.get_default_device():
            stack.enter_context(torch.device(state["default_device"]))
        stack.enter_context(torch.inference_mode(state["inference_mode"]))
        stack.enter_context(torch.set_grad_enabled(state["grad_mode"]))
        for device in _AUTOCAST:
            dtype = state["autocast"].get(device)
            if dtype is not None or torch.is_autocast_enabled(device):
                dtype = torch.get_autocast_dtype(device) if dtype is None else DTYPES[dtype]
                stack.enter_context(torch.autocast(device, dtype=dtype, enabled=device in state["autocast"]))
        try:
            torch.set_default_dtype(DTYPES[state["default_dtype"]])
            for module in modules:
                module.training = data["training"]
            yield
        finally:
            torch.set_default_dtype(before)
            for module, mode in zip(modules, training, strict=True):
                module.training = mode
