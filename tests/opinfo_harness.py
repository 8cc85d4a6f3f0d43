"""Calls one compiled function per OpInfo of thunder on many samples and compares it with eager torch.

The way of compiling is an argument, so that thunder's own caches can be measured with the same ruler:
``python -m tests.opinfo_harness --cache constant --dtypes float32 --ops add,sub --backward``
"""

from __future__ import annotations

import argparse
import copy
import functools
import gc
import random
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import speckey  # first: it makes thunder importable on torch 2.13

# isort: split
import numpy as np
import thunder
import torch
from thunder.core import dtypes as thunder_dtypes
from thunder.tests.opinfos import OpInfo, opinfos
from torch.utils._pytree import tree_leaves, tree_map

MAX_ELEMENTS = 2**15  # larger samples cost time and ask nothing new of a cache
DTYPES = {name: getattr(thunder_dtypes, {"bool": "bool8"}.get(name, name))
          for name in ("float32", "float64", "int64", "bool")}  # fmt: skip
# (rtol, atol).  Tight is safe: a difference from eager only counts when a fresh compile does not show it too.
TOLERANCES = {torch.float32: (1e-5, 1e-5), torch.float64: (1e-7, 1e-7)}


class Way(NamedTuple):
    """A way of compiling: ``compile(fn)`` gives the compiled function, ``entries(jfn)`` how many programs it holds."""

    compile: Callable
    entries: Callable[[Any], int]


def _interpreter_cache_size(jfn) -> int:
    return len(thunder.compile_stats(jfn).interpreter_cache)


WAYS = {
    "constant": Way(thunder.jit, _interpreter_cache_size),
    "symbolic": Way(functools.partial(thunder.jit, cache="symbolic values"), _interpreter_cache_size),
    "speckey": Way(lambda fn: thunder.jit(fn, cache=speckey.SpecKeyCache()), lambda jfn: len(speckey.entries(jfn))),
}


class Failure(NamedTuple):
    kind: str  # "wrong", "error" or "thunder differs"
    op: str
    dtype: str
    direction: str
    sample: int  # index among all samples of the op
    again: bool  # in the second run over the samples
    message: str

    def __str__(self) -> str:
        run = ", second run" if self.again else ""
        return f"{self.kind}: {self.op} {self.dtype} {self.direction}, sample {self.sample}{run}: {self.message}"


class Row(NamedTuple):
    """One op, dtype and direction. The directions share one compiled function; the counts are those of this one."""

    op: str
    dtype: str
    direction: str
    samples: int
    calls: int
    entries: int
    compiles: int
    seconds: float


@dataclass
class Report:
    cache: str
    rows: list[Row] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def _failed(self, kind: str) -> list[Failure]:
        return [failure for failure in self.failures if failure.kind == kind]

    @property
    def ops(self) -> int:
        return len({(row.op, row.dtype) for row in self.rows})

    @property
    def calls(self) -> int:
        return sum(row.calls for row in self.rows)

    @property
    def seconds(self) -> float:
        return sum(row.seconds for row in self.rows)

    @property
    def wrong(self) -> int:
        return len(self._failed("wrong"))

    @property
    def errors(self) -> int:
        return len(self._failed("error"))

    @property
    def thunder_differs(self) -> int:
        return len(self._failed("thunder differs"))

    def summary(self) -> str:
        ops = {kind: len({f.op for f in self._failed(kind)}) for kind in ("wrong", "error", "thunder differs")}
        return (
            f"{self.cache}: {self.ops} ops, {self.calls} calls: {self.wrong} wrong (in {ops['wrong']} ops), "
            f"{self.errors} errors (in {ops['error']} ops), "
            f"{self.thunder_differs} thunder differs from eager (in {ops['thunder differs']} ops); "
            f"{sum(r.samples for r in self.rows)} samples, {sum(r.compiles for r in self.rows)} compiles, "
            f"{sum(r.entries for r in self.rows)} entries, {self.seconds:.0f} s"
        )

    def failure_text(self, kinds: Iterable[str] = ("wrong", "error")) -> str:
        return "\n".join([self.summary(), *(str(f) for f in self.failures if f.kind in kinds)])


class Raised(NamedTuple):
    """The outcome of a call that raised."""

    text: str


def _detached(x):
    return x.detach() if isinstance(x, torch.Tensor) else x


def _clone(sample: tuple) -> tuple:
    """Copies of all tensors, with strides, storage shared between tensors and ``requires_grad`` as they were."""
    copies: dict[int, torch.Tensor] = {}
    memo: dict = {}

    def clone(x):
        if not isinstance(x, torch.Tensor):
            return x
        if id(x) not in copies:
            copies[id(x)] = copy.deepcopy(x.detach(), memo).requires_grad_(x.requires_grad)
        return copies[id(x)]

    return tree_map(clone, sample)


def _cotangent(out: torch.Tensor) -> torch.Tensor:
    return torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(1))


def _run(fn: Callable, sample: tuple, *, backward: bool, seed: int = 0) -> dict | Raised:
    """What a call does: its result, its tensor inputs afterwards (it may have mutated them), and their gradients."""
    args, kwargs = _clone(sample)
    inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    torch.manual_seed(seed)
    try:
        out = fn(*args, **kwargs)
        outcome = {"result": tree_map(_detached, out), "inputs": [_detached(x) for x in inputs]}
        if backward:
            wanted = [x for x in inputs if x.requires_grad and x.is_leaf]
            outs = [o for o in tree_leaves(out) if isinstance(o, torch.Tensor) and o.requires_grad]
            grads: Iterable = [None] * len(wanted)
            if outs and wanted:
                grads = torch.autograd.grad(outs, wanted, [_cotangent(o) for o in outs], allow_unused=True)
            # No gradient and a gradient of zeros mean the same.
            outcome["grads"] = [torch.zeros_like(x) if g is None else g for g, x in zip(grads, wanted, strict=True)]
    except Exception as error:
        return Raised(f"{type(error).__name__}: {error}".partition("\n")[0][:160])
    return outcome


def mismatch(actual: Any, expected: Any, *, values: bool = True, where: str = "") -> str | None:
    """How two nested results differ, or None; without `values` tensors need only have the same shape and dtype."""
    if isinstance(expected, torch.Tensor):
        if not isinstance(actual, torch.Tensor):
            return f"{where} is a {type(actual).__name__}, expected a tensor"
        for what in ("shape", "dtype", "device"):
            got, want = getattr(actual, what), getattr(expected, what)
            if got != want:
                return f"{where} has {what} {got}, expected {want}"
        rtol, atol = TOLERANCES.get(expected.dtype, (None, None))
        if values:
            try:
                torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, equal_nan=True)
            except AssertionError as error:
                # The line that tells how many elements differ, when there is one.
                lines = [line for line in str(error).splitlines() if line]
                return f"{where} {next((line for line in lines if line.startswith('Mismatched')), lines[0])}"
        return None
    if isinstance(expected, dict):
        if not isinstance(actual, dict) or actual.keys() != expected.keys():
            return f"{where} has other keys"
        parts: Iterable = ((str(key), actual[key], expected[key]) for key in expected)
    elif isinstance(expected, (tuple, list)):
        # Named tuples (torch.return_types) come out of thunder as tuples.
        if not isinstance(actual, list if isinstance(expected, list) else tuple) or len(actual) != len(expected):
            size = f" of {len(actual)}" if isinstance(actual, (tuple, list)) else ""
            return f"{where} is a {type(actual).__name__}{size}, expected {type(expected).__name__} of {len(expected)}"
        parts = ((f"[{i}]", a, e) for i, (a, e) in enumerate(zip(actual, expected, strict=True)))
    elif isinstance(expected, (bool, int, float, complex)):
        if type(actual) is type(expected) and (
            not values or torch.allclose(torch.tensor(actual), torch.tensor(expected), equal_nan=True)
        ):
            return None
        return f"{where} is {actual!r}, expected {expected!r}"
    else:
        return None if actual == expected else f"{where} is {actual!r}, expected {expected!r}"
    found = (mismatch(a, e, values=values, where=where + name) for name, a, e in parts)
    return next((text for text in found if text is not None), None)


def _samples(op: OpInfo, dtype: str, *, cap: int, requires_grad: bool) -> list[tuple[int, tuple]]:
    """Up to `cap` samples, spread evenly over the list: the generators are nested loops, so neighbours are alike."""
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(0)
    found = []
    for index, sample in enumerate(op.sample_inputs("cpu", DTYPES[dtype], requires_grad=requires_grad)):
        both = (tuple(sample.args), dict(sample.kwargs))
        if sum(x.numel() for x in tree_leaves(both) if isinstance(x, torch.Tensor)) <= MAX_ELEMENTS:
            found.append((index, both))
    count = min(cap, len(found))
    return [found[i * len(found) // count] for i in range(count)]


def _caller(op: Callable) -> Callable:
    def call_op(*args, **kwargs):
        return op(*args, **kwargs)

    return call_op


class _Judge:
    """Decides what an outcome of the compiled function is worth, from eager's and a fresh compile's outcomes."""

    def __init__(self, fn: Callable, reference: Callable | None, sample: tuple, backward: bool):
        self.fn, self.reference, self.sample, self.backward = fn, reference, sample, backward

    def _expect(self, seed: int = 0) -> dict | Raised:
        # An op without a reference in torch has only thunder to say what is right.
        fn = thunder.jit(self.fn) if self.reference is None else self.reference
        return _run(fn, self.sample, backward=self.backward, seed=seed)

    @functools.cached_property
    def expected(self) -> dict | Raised:
        return self._expect()

    @functools.cached_property
    def fresh(self) -> dict | Raised:
        if self.reference is None:
            return self.expected
        return _run(thunder.jit(self.fn), self.sample, backward=self.backward)

    @functools.cached_property
    def is_random(self) -> bool:
        return any(mismatch(self._expect(seed), self.expected) for seed in range(1, 5))

    def verdict(self, actual: dict | Raised) -> tuple[str, str] | None:
        """None if the outcome is right, else the kind of failure and a message."""
        if isinstance(actual, Raised):
            return None if isinstance(self.fresh, Raised) else ("error", actual.text)
        differs = "eager raises " + self.expected.text if isinstance(self.expected, Raised) else None
        if differs is None:
            differs = mismatch(actual, self.expected)
        if differs is None:
            return None
        if isinstance(self.fresh, Raised):
            return "wrong", f"a value, but a fresh compile raises {self.fresh.text}"
        if not isinstance(self.expected, Raised) and self.is_random:
            differs = mismatch(actual, self.expected, values=False)
            if differs is None:
                return None
        kind = "thunder differs" if mismatch(actual, self.fresh) is None else "wrong"
        return kind, differs


def _choose(op: OpInfo, sample: tuple) -> Callable:
    """The torch function, which is what users call, unless thunder cannot compile it (`torch._refs`, for one)."""
    fn = _caller(op.torch_reference or op.op)
    if op.torch_reference is not None and isinstance(_run(thunder.jit(fn), sample, backward=False), Raised):
        return _caller(op.op)
    return fn


def _check_op(report: Report, way: Way, op: OpInfo, dtype: str, *, forward: bool, backward: bool, cap: int) -> None:
    backward = backward and op.supports_grad and dtype.startswith("float")
    todo = {"forward": False} if forward else {}
    if backward:
        todo["backward"] = True
    jfn = fn = None
    for direction, requires_grad in todo.items():
        start = time.perf_counter()
        samples = _samples(op, dtype, cap=cap, requires_grad=requires_grad)
        if not samples:
            continue
        if jfn is None:
            fn = _choose(op, samples[0][1])
            jfn = way.compile(fn)
        judges = [_Judge(fn, op.torch_reference, sample, requires_grad) for _, sample in samples]
        entries, misses = way.entries(jfn), thunder.cache_misses(jfn)
        for again in (False, True):
            for (index, sample), judge in zip(samples, judges, strict=True):
                verdict = judge.verdict(_run(jfn, sample, backward=requires_grad))
                if verdict is not None:
                    report.failures.append(Failure(verdict[0], op.name, dtype, direction, index, again, verdict[1]))
        report.rows.append(
            Row(
                op.name,
                dtype,
                direction,
                samples=len(samples),
                calls=2 * len(samples),
                entries=way.entries(jfn) - entries,
                compiles=thunder.cache_misses(jfn) - misses,
                seconds=time.perf_counter() - start,
            )
        )


def select_ops(names: Iterable[str] = ()) -> Iterator[OpInfo]:
    """The OpInfos of these names, or all; a name that does not exist is a ValueError."""
    names = set(names)
    unknown = names - {op.name for op in opinfos}
    if unknown:
        raise ValueError(f"no OpInfo named {', '.join(sorted(unknown))}")
    return (op for op in opinfos if not names or op.name in names)


def check_ops(
    way: Way,
    *,
    cache: str = "",
    ops: Iterable[str] = (),
    dtypes: Iterable[str] = ("float32",),
    forward: bool = True,
    backward: bool = False,
    cap: int = 12,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Run the named OpInfos (default: all) with a way of compiling and report what came out differently.

    Args:
        way: how to compile, one of `WAYS` or your own.
        cache: the way's name, for the report.
        dtypes: names out of `DTYPES`; an op that has no samples of a dtype is left out.
        backward: also compare gradients, for float dtypes and ops that support them.
        cap: the most samples per op, dtype and direction; each is called twice.
        progress: called with one line per op and dtype.
    """
    report = Report(cache)
    for dtype in dtypes:
        for op in select_ops(ops):
            if DTYPES[dtype] not in op.dtypes():
                continue
            rows, failures = len(report.rows), len(report.failures)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                _check_op(report, way, op, dtype, forward=forward, backward=backward, cap=cap)
            gc.collect()  # compiled functions are cycles, and hold on to their samples
            if progress is not None and len(report.rows) > rows:
                new = report.rows[rows:]
                kinds = Counter(f.kind for f in report.failures[failures:])
                calls, compiles, seconds = (sum(getattr(r, n) for r in new) for n in ("calls", "compiles", "seconds"))
                progress(
                    f"{op.name:32} {dtype:8} {calls:3} calls {compiles:3} compiles {seconds:5.1f} s  "
                    f"{', '.join(f'{n} {kind}' for kind, n in kinds.items())}"
                )
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", choices=WAYS, default="speckey")
    parser.add_argument("--dtypes", default="float32", help=f"comma-separated, out of {', '.join(DTYPES)}")
    parser.add_argument("--ops", default="", help="comma-separated names of OpInfos (default: all)")
    parser.add_argument("--backward", action="store_true", help="compare gradients as well")
    parser.add_argument("--no-forward", dest="forward", action="store_false", help="only --backward")
    parser.add_argument("--cap", type=int, default=12, help="the most samples per op (default: 12)")
    parser.add_argument("--quiet", action="store_true", help="only the report")
    options = parser.parse_args()
    torch.set_num_threads(1)
    report = check_ops(
        WAYS[options.cache],
        cache=options.cache,
        ops=[name for name in options.ops.split(",") if name],
        dtypes=options.dtypes.split(","),
        forward=options.forward,
        backward=options.backward,
        cap=options.cap,
        progress=None if options.quiet else functools.partial(print, flush=True),
    )
    print(report.failure_text(("wrong", "error", "thunder differs")))


if __name__ == "__main__":
    main()
