"""One entry from thunder: with free sizes first, with the exact sizes when that fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import attrs
import torch

from speckey import bounds, thunder_hooks
from speckey.guards import Guard, Path
from speckey.key import Names, SpecKey, names_of_parameters, path_text
from speckey.policies.vary import Dim
from speckey.recorder import Fact, Recorder
from speckey.signature import Description, Question, alias_groups
from speckey.thunder_hooks import OUT_OF_MEMORY, Program, Tracing


@attrs.define(eq=False)
class Entry:
    """A compiled program and what a call must look like to be served by it.

    Attributes:
        key: the specialization key.
        kind: "symbolic" (sizes that no fact mentions are free) or "exact" (made for these very sizes).
        hits: how many calls it has served after the one that it was compiled for.
        compile_seconds: what tracing and compiling took, in seconds.
        number: counted from 1 in the order of compiling; kept when others are dropped.
        used: when it last served a call: a number that grows from call to call.
        reason: why it is exact, or free in some sizes only; else empty.
    """

    key: SpecKey
    kind: Literal["symbolic", "exact"]
    compile_seconds: float
    reason: str = ""
    number: int = 0
    hits: int = 0
    inputs: Any = attrs.field(repr=False, default="its inputs were not recorded")  # as data, or why not
    used: int = attrs.field(repr=False, default=0)
    facts: Sequence[Fact] = attrs.field(repr=False, factory=tuple)
    shapes: tuple[tuple[int, ...], ...] = attrs.field(repr=False, default=())
    answers: Sequence[tuple[Question, object]] = attrs.field(repr=False, factory=tuple)
    tensor_paths: tuple[Path, ...] = attrs.field(repr=False, default=())
    number_paths: tuple[Path, ...] = attrs.field(repr=False, default=())
    free_numbers: frozenset[int] = attrs.field(repr=False, default=frozenset())
    program: Program = attrs.field(repr=False, default=None)
    guards: Mapping[Path, Guard] = attrs.field(repr=False, factory=dict)
    aliases: str | None = attrs.field(repr=False, default=None)
    reusable: bool = attrs.field(repr=False, default=True)
    run: Callable[[tuple, dict], Any] = attrs.field(repr=False, default=None)  # set after its first run

    @property
    def steps(self) -> list[tuple[Any, Any]]:
        return [*self.answers, *((fact.test, fact.outcome) for fact in self.facts if self.kind == "symbolic")]

    @property
    def structure(self) -> tuple:
        """As ``Description.structure`` has it."""
        numbers = set(self.number_paths)
        return tuple([a for q, a in self.answers if q.kind not in ("value", "bits") or q.path not in numbers])

    @property
    def shapes_only(self) -> tuple | None:
        return self.shapes if self.kind == "exact" else None

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(map(len, self.shapes))


@attrs.frozen
class Call:
    """One call on its way to being compiled."""

    jfn: Any
    fn: Any
    args: tuple
    kwargs: dict[str, Any]
    description: Description
    dims: Mapping[tuple[int, int], Dim] = attrs.field(factory=dict)  # (tensor, dimension) -> what it may be
    inputs: Any = None  # as ``Entry`` has them
    varied: frozenset[tuple[int, int]] = frozenset()  # those whose size has differed between calls
    free_numbers: frozenset[int] = frozenset()  # positions of the numbers that may be anything

    @property
    def free(self) -> frozenset[tuple[int, int]]:
        """Those whose size may be anything within the bounds."""
        return frozenset(place for place, dim in self.dims.items() if dim.free)


def compile_entry(call: Call, *, exactly: bool = False, reason: str = "") -> Entry:
    """Compile a program for this call: with all that is free, else with less of it, else exactly.

    Numbers are the first to be constant; then sizes that have not varied between calls.

    Raises:
        Whatever thunder raises with constant values, when it cannot compile the call either.
    """
    if not exactly:
        none: frozenset[int] = frozenset()
        varied = call.free & call.varied
        for free, numbers in dict.fromkeys(
            [(call.free, call.free_numbers), (call.free, none), (varied, call.free_numbers), (varied, none)]
        ):
            if free or numbers:
                try:
                    return _compile(call, free, numbers, reason)
                except OUT_OF_MEMORY:
                    raise
                except Exception as error:
                    reason = _reason_of(error)
                    # What the program did to it would be taken for the state that the call found.
                    torch.set_default_dtype(call.description.answer("default dtype"))
    return _compile(call, frozenset(), frozenset(), reason)


def _reason_of(error: BaseException) -> str:
    error = thunder_hooks.cause_of(error)
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def outside_of_bounds(call: Call) -> str:
    """Why the sizes of a call are out of the policy's bounds; empty where they are not.

    Raises:
        BoundsError: they are, and the policy asks for an error.
    """
    return bounds.outside(call.dims, call.description.shapes(), names_of(call).tensors)


def _compile(call: Call, free: frozenset[tuple[int, int]], numbers: frozenset[int], reason: str = "") -> Entry:
    start = time.perf_counter()
    description = call.description
    recorder = Recorder(description.sizes())
    symbolic = bool(free or numbers)
    if symbolic:
        bounds.assume(recorder, call.dims, description.shapes())
    tracing = Tracing(
        recorder=recorder,
        symbolic=symbolic,
        free=free,
        tensors={path: i for i, path in enumerate(description.paths)},
        numbers={description.number_paths[i]: i for i in numbers},
        structured=frozenset(description.structured),
        identified=frozenset(question.path for question, _ in description.answers if question.kind == "identity"),
        values=description.tensors,
    )
    by_path = dict(zip(description.paths, description.tensors, strict=True))

    def groups(positions: dict[Path, int]) -> str:
        return alias_groups((position, by_path[path]) for path, position in positions.items() if path in by_path)

    program = thunder_hooks.compile_program(call.jfn, call.fn, call.args, call.kwargs, tracing, groups)
    recorder.settle()
    seconds = time.perf_counter() - start
    names = names_of(call)
    answers = description.answers_without(numbers)
    aliases = alias_groups(enumerate(description.tensors)) if program.in_place else None
    return Entry(
        key=SpecKey.of(
            tuple([answer for _, answer in answers]),
            recorder.facts,
            _arguments(call, names, numbers, aliases),
            names,
        ),
        kind="symbolic" if symbolic else "exact",
        compile_seconds=seconds,
        reason=reason,
        facts=tuple(recorder.facts),
        shapes=description.shapes(),
        answers=tuple(answers),
        tensor_paths=tuple(description.paths),
        number_paths=tuple(description.number_paths),
        free_numbers=numbers,
        program=program,
        guards=recorder.guards,
        aliases=aliases,
        reusable=description.cacheable and program.reusable and recorder.repeatable,
    )


# -- names -----------------------------------------------------------------------------------------


def _parameters(call: Call) -> dict[Path, str]:
    return names_of_parameters(call.fn, call.args, call.kwargs)


def names_of(call: Call) -> Names:
    """How the user's signature calls the tensors and numbers of a call."""
    parameters = _parameters(call)
    tensors, numbers = (
        tuple(path_text(path, parameters) for path in paths)
        for paths in (call.description.paths, call.description.number_paths)
    )
    return Names(tensors, numbers)


def _arguments(call: Call, names: Names, free: frozenset[int], aliases: str | None) -> tuple[str, ...]:
    """One line per argument: what it is, apart from its sizes."""
    tensors = {id(t): name for t, name in zip(call.description.tensors, names.tensors, strict=True)}
    lines = [_tensor_text(name, t) for name, t in zip(names.tensors, call.description.tensors, strict=True)]
    parameters = _parameters(call)
    free_paths = {call.description.number_paths[i] for i in free}
    for path, value in [
        *((("item", ("args",), i), v) for i, v in enumerate(call.args)),
        *((("item", ("kwargs",), k), v) for k, v in call.kwargs.items()),
    ]:
        if id(value) not in tensors:
            constant = isinstance(value, (int, float, complex, str, type(None))) and path not in free_paths
            lines.append(f"{parameters[path]}: {repr(value) if constant else type(value).__name__}")
    lines.extend(_environment_text(call.description))
    if aliases:
        lines.append(f"tensors that share memory: {aliases}")
    return tuple(lines)


def _environment_text(description: Description) -> list[str]:
    """What is not as torch starts out."""
    lines = []
    if description.answer("inference mode"):
        lines.append("under torch.inference_mode()")
    elif not description.answer("grad mode"):
        lines.append("under torch.no_grad()")
    if description.answer("default dtype") is not torch.float32:
        lines.append(f"default dtype {description.answer('default dtype')}")
    if description.answer("default device") is not None:
        lines.append(f"default device {description.answer('default device')}")
    for device, dtype in zip(("cpu", "cuda"), description.answer("autocast") or (None, None), strict=True):
        if dtype is not None:
            lines.append(f"under torch.autocast({device!r}, {dtype})")
    return lines


def _tensor_text(name: str, tensor: Any) -> str:
    sizes = ", ".join("*" * tensor.dim())
    grad = ", requires_grad" if tensor.requires_grad else ""
    return f"{name}: {str(tensor.dtype).removeprefix('torch.')}[{sizes}] {tensor.device}{grad}"
