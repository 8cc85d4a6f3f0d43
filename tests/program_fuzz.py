"""Random whole programs over tensor shapes, each call of the compiled program compared with eager.

`python -m tests.program_fuzz --cache speckey --seeds 0:200`.  A seed determines the program, its inputs and the order
of the calls.  Knows thunder only as `thunder.jit`; what compiles a function is an argument of the runner.
"""

from __future__ import annotations

import argparse
import itertools
import linecache
import math
import operator
import random
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace

import thunder
import torch

import speckey  # before thunder: on some torch versions thunder imports only with its help

# ---------------------------------------------------------------------------------------------------------------------
# Programs


@dataclass(frozen=True)
class TensorSpec:
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    grad: bool = False

    def __repr__(self):
        kind = {torch.float32: "f32", torch.float64: "f64", torch.int64: "i64", torch.bool: "bool"}[self.dtype]
        return f"{kind}{list(self.shape)}{' grad' if self.grad else ''}"


@dataclass(frozen=True)
class Same:
    """The very tensor object that is passed as the first argument."""

    def __repr__(self):
        return "<the first argument>"


@dataclass(frozen=True)
class Combo:
    """One choice of inputs: TensorSpec, Same, Python values, and lists and dicts of them."""

    args: tuple
    kwargs: dict = field(default_factory=dict)

    def __repr__(self):
        parts = [repr(a) for a in self.args] + [f"{k}={v!r}" for k, v in self.kwargs.items()]
        return f"program({', '.join(parts)})"


@dataclass(frozen=True)
class Call:
    combo: int
    data: int  # calls of one combo get different values in their tensors: values must never be baked into a program
    no_grad: bool = False


@dataclass(frozen=True)
class Program:
    seed: int
    params: str
    body: tuple[str, ...]
    returns: tuple[str, ...]
    form: str  # how the returns are wrapped: "single", "tuple", "list", "dict", "nested"
    combos: tuple[Combo, ...]
    calls: tuple[Call, ...]

    def source(self) -> str:
        items = ", ".join(self.returns)
        pairs = ", ".join(f'"r{i}": {r}' for i, r in enumerate(self.returns))
        value = {
            "single": self.returns[0],
            "tuple": f"({items},)",
            "list": f"[{items}]",
            "dict": f"{{{pairs}}}",
            "nested": f'[{self.returns[0]}, {{"rest": ({items},)}}]',
        }[self.form]
        return _function(self.params, [*self.body, f"return {value}"])


def _function(params: str, body: list[str]) -> str:
    return "\n".join([f"def program({params}):", *(f"    {line}" for line in body), ""])


_serial = itertools.count()


def load(source: str) -> Callable:
    """The function `program` of this source, with lines in tracebacks and for `inspect`."""
    name = f"<fuzz {next(_serial)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    namespace = _namespace()
    exec(compile(source, name, "exec"), namespace)
    return namespace["program"]


def _namespace() -> dict:
    return {"torch": torch, "math": math, "operator": operator, "F": torch.nn.functional}


def build(program: Program, call: Call) -> tuple[tuple, dict, list[torch.Tensor]]:
    """Fresh inputs of a call, and the tensors in them."""
    combo, tensors = program.combos[call.combo], []
    generator = torch.Generator().manual_seed(program.seed * 10007 + call.combo * 101 + call.data)

    def make(spec):
        if isinstance(spec, TensorSpec):
            # Multiples of 1/4: most arithmetic is exact, so that rounding does not decide comparisons.
            low, high = {torch.bool: (0, 2), torch.int64: (-3, 5)}.get(spec.dtype, (-8, 9))
            data = torch.randint(low, high, spec.shape, generator=generator).to(spec.dtype)
            data = data.div_(4) if spec.dtype.is_floating_point else data
            tensors.append(data.requires_grad_(spec.grad))
            return data
        if isinstance(spec, Same):
            return tensors[0]
        if isinstance(spec, (list, tuple)):
            return type(spec)(map(make, spec))
        if isinstance(spec, dict):
            return {k: make(v) for k, v in spec.items()}
        return spec

    args = make(combo.args)
    return args, make(combo.kwargs), tensors


# ---------------------------------------------------------------------------------------------------------------------
# The grammar.  A slot <..> is filled by _Writer.fill; a digit in front is the least rank of <x>.  A tilde in front makes
# a template rare: thunder interprets each step of an iteration, tests for `in` a tuple included, in 50 to 400 ms.
#
#   <x> <y> <z> a tensor (the same one throughout a template)      <d> <e> a dimension of x     <v> <w> <h> a new name
#   <A> a size   <I> an integer   <N> one in 0..9   <P> one in 1..9   <k> 0..5   <q> a constant that is not 0
#   <S> a number   <f> a float   <C> a condition   <R> one that is rarely true   <T> a tensor expression   <r> a comparison

INTS = """
(<I> + <I>)
(<I> - <I>)
(<I> * <k>)
(<A> * <A>)
(-<A>)
(<I> // <q>)
(<I> % <q>)
(<A> // <A>)
(<A> % <A>)
(-<A> // <q>)
(<A> ** 2)
(2 ** <A>)
abs(<I> - <k>)
min(<A>, <I>)
max(<I>, <k>)
min(<A>, <A>, <k>)
divmod(<I>, <q>)[0]
divmod(<I>, <q>)[1]
int(<A> * 0.5)
int(<A> / <q>)
int(<A> ** 0.5)
int(<C>)
int(str(<A>))
round(<A> / 2)
math.ceil(<A> / 3)
math.floor(<A> / <q>)
math.isqrt(<A>)
math.gcd(<A>, <I>)
math.prod(<x>.shape)
math.trunc(<f>)
sum(<x>.shape)
max(<x>.shape, default=0)
1sorted(<x>.shape)[0]
1sorted(<x>.shape, reverse=True)[0]
1min(<x>.shape)
len({<A>, <A>})
len(set(<x>.shape))
len(str(<I>))
len(f"{<A>}-{<A>}")
(<A> if <C> else <I>)
(<C> + <k>)
(<k> - (<A> == <A>))
{1: 5, 2: 7, 3: 0}.get(<A>, <k>)
{"1": 4, "2": 6}.get(str(<A>), <k>)
{<A>: 3, <A>: 4}.get(<k>, 1)
{f"{<A>}x{<A>}": 1}.get("1x1", <k>)
[3, 1, 4, 1, 5, 9, 2, 6, 5][<A>]
[<A>, <k>].index(max(<A>, <k>))
[<A>, <I>, <k>][<A> % 3]
(<A> & 1)
(<A> | <k>)
(<A> ^ <A>)
(~<A>)
(<A> << 1)
(<A> >> 1)
<A>.bit_length()
pow(<A>, 2, 5)
operator.index(<A>)
~sum([s > 1 for s in <x>.shape])
~~sum(s for s in <x>.shape if s != <k>)
~len([s for s in <x>.shape if s <r> <k>])
max([<A>, <I>, <k>])
sorted([<A>, <k>, <A>])[1]
(lambda q: q * 2 - 1)(<A>)
(<A> and <I>)
(<A> or <k>)
"""

FLOATS = """
(<I> * 0.5)
(<A> / <q>)
(<A> / 4)
((<A> + 1) ** -0.5)
((<A> + 1.0) / (<A> + 2))
math.sqrt(<A>)
math.log(<A> + 1)
round(<A> * 0.37, 1)
float(<I>)
(<A> - 0.25)
(-<A> * 1.5)
abs(<f>)
max(<f>, <A>)
(1.5 if <C> else <f>)
math.copysign(0.5, <I>)
(<A> // 1.5)
(<A> % 1.5)
"""

CONDITIONS = """
<A> <r> <k>
<A> <r> <k>
<A> <r> <A>
<A> <r> <A>
<A> == 1
<A> > 1
<I> <r> <I>
<I> % <q> == <k>
0 < <I> <= 3
<A> == <A> == <A>
~<A> in (1, 2, 3)
<A> in {<k>, <k>, 4}
~<A> not in [<k>, <A>]
~1 in <x>.shape
bool(<A>)
bool(<I> - <k>)
not <A>
not (<C>)
(<C>) and (<C>)
(<C>) or (<C>)
<x>.shape == <y>.shape
<x>.shape != <y>.shape
<x>.shape < <y>.shape
tuple(<x>.shape) == (<k>, <k>)
tuple(<x>.shape) == (2, 2)
~tuple(<x>.shape) in [(1, 1), (2,), (3, 3), ()]
list(<x>.shape) == sorted(<x>.shape)
1<x>.shape[-1:] == <y>.shape[-1:]
1<x>.shape[:1] == (<k>,)
set(<x>.shape) == {1, <k>}
len(set(<x>.shape)) == len(<x>.shape)
isinstance(<A>, int)
isinstance(<A>, (float, str))
type(<A>) is int
<A> is not None
<x>.ndim == <k>
<x>.ndim > <y>.ndim
<x>.numel() <r> <k>
<x>.numel() == <y>.numel()
f"{<A>}" == "<k>"
str(<A>) in "1236"
f"{<A>}x{<A>}" == "2x3"
"%d" % <A> < "3"
<A> / 2 > 1.5
<A> * 0.5 == <k>
<f> <r> <f>
<f> > <k>
<A> == <k>.0
~all(s > 1 for s in <x>.shape)
~any(s == <k> for s in <x>.shape)
~~any([s == t for s, t in zip(<x>.shape, <y>.shape)])
max(<x>.shape, default=0) > <k>
sum(<x>.shape) % 2 == 0
<x>.requires_grad
<x>.is_floating_point()
<x> is <y>
"""

TENSORS = """
0<x> + <y>
0<x> - <y>
0<x> * <y>
0<x> * <y>
0torch.add(<x>, <y>, alpha=<k>)
0torch.maximum(<x>, <y>)
0torch.where(<x> > <y>, <x>, <y>)
0torch.where(<x> > 0, <y>, <S>)
0<x> <r> <y>
0(<x> > 0) & (<y> <r> 1)
0<x> * <S>
0<x> * <A>
0<x> + <I>
0<x> - <S>
0<S> - <x>
0<x> / <P>
0<x> / <x>.numel()
0<x> // <q>
0<x> ** 2
0<x> == <A>
0<x>.masked_fill(<x> > 0, <S>)
0<x>.clamp(-1, <A>)
0torch.relu(<x>)
0torch.tanh(<x>)
0torch.exp(-<x>.abs())
0<x>.abs().sqrt()
0F.gelu(<x>)
0<x>.sum()
0<x>.mean()
0<x>.to(torch.float32)
0<x>.to(torch.int64)
0<x>.bool()
0<x>.reshape(-1)
0<x>.flatten()
0<x>[None]
0<x>[..., None]
0<x>.unsqueeze(0)
0<x>.unsqueeze(-1)
0<x>.squeeze()
0<x>.expand(<P>, *<x>.shape)
0<x>.expand_as(<x> + <y>)
0torch.broadcast_to(<x>, (<P>, *<x>.shape))
0torch.broadcast_tensors(<x>, <y>)[1]
0torch.stack([<x>, <x> * 2], <k>)
0torch.stack([<x>, <y>])
0<x>.view_as(<y>)
0torch.zeros(<x>.shape) + <y>
0torch.ones_like(<x>) * <A>
0torch.full_like(<x>, <S>)
0torch.full((<N>, <A>), <S>)
0torch.full(tuple(<x>.shape), <f>)
0torch.zeros(<A>, <N>)
0torch.ones(*<x>.shape, dtype=torch.int64)
0torch.arange(<N>)
0torch.arange(<A>) * <S>
0torch.arange(<A>, dtype=torch.float32).unsqueeze(-1)
0torch.arange(<k>, <k> + <N>, 2)
0<x>.new_zeros((<N>, 2))
0torch.tensor([<A>, <I>])
0torch.tensor(<A>) * <x>
0(<x> if <C> else <y>)
0[<x>, <y>, <x> * 2][<A> % 3]
0{True: <x>, False: <y>}[<C>]
0{"1": <x>, "2": <y>}.get(str(<A>), <x> * <A>)
0(<T>) * <S>
0(<T>) + <x>
0torch.cat([(<T>).reshape(-1), <x>.reshape(-1)])
0torch.cat([<x>.reshape(-1)[:<N>], <y>.reshape(-1)])
~0sum([<x> * s for s in <x>.shape], <x>)
1<x>.sum(<d>)
1<x>.sum(<d>, keepdim=True)
1<x> - <x>.mean(<d>, keepdim=True)
1<x>.mean(<d>)
1<x>.amax(<d>)
1<x>.amax(<d>, keepdim=True) - <x>
1<x>.max(<d>)[0]
1<x>.argmax(<d>)
1<x>.prod(<d>)
1<x>.std(<d>)
1<x>.var(<d>, correction=0)
1(<x> > 0).any(<d>)
1<x>.cumsum(<d>)
1torch.softmax(<x>, <d>)
1torch.log_softmax(<x>, <d>)
1F.layer_norm(<x>, <x>.shape[-1:])
1F.layer_norm(<x>, (<x>.shape[-1],))
1<x>.squeeze(<d>)
1<x>.unsqueeze(<d>)
1<x>.transpose(<d>, <e>)
1<x>.movedim(<d>, <e>)
1<x>.narrow(<d>, 0, min(<x>.shape[<d>], <k>))
1<x>.narrow(0, <x>.shape[0] // 2, <x>.shape[0] - <x>.shape[0] // 2)
1<x>[1:]
1<x>[:-1]
1<x>[::2]
1<x>[-1]
1<x>[0]
1<x>[..., -1]
1<x>[..., :<I>]
1<x>[<I>:]
1<x>[:<N>]
1<x>[-<P>:]
1<x>[<x>.shape[0] // 2:]
1<x>[<k>:<I>:2]
1<x>[<x>.shape[0] - 1]
1<x>[<N> % <x>.shape[0]]
1<x>[1:] - <x>[:-1]
1<x>.flip(<d>)
1torch.roll(<x>, <I>, <d>)
1torch.cat([<x>, <x>], <d>)
1torch.cat([<x>, <y>], <d>)
1torch.cat([<x>, <x>[:<N>]])
1torch.cat([<x>] * <P>, <d>)
1<x>.split(<P>)[0]
1<x>.split(<P>, <d>)[-1]
~1torch.cat(<x>.split(<P>)[::-1])
1torch.split(<x>, [1, <x>.shape[0] - 1])[1]
1<x>.chunk(<P>, <d>)[0]
1<x>.unbind(<d>)[-1]
~1sum(<x>.unbind(<d>))
~1torch.stack(list(<x>.unbind(<d>))[::-1])
1F.pad(<x>, (<N>, 1))
1F.pad(<x>, (0, <N>), value=<f>)
1F.pad(<x>, (0, <P> - <x>.shape[-1]))
1<x>.flatten().repeat(<P>)
1torch.repeat_interleave(<x>, <P>, <d>)
~1<x>.repeat(<P>, *([1] * (<x>.ndim - 1)))
~1<x>.repeat(<P>, *<x>.shape)
1<x>.view(-1, <x>.shape[-1])
1<x>.reshape(<x>.shape[-1], -1)
~1<x>.reshape(*<x>.shape[::-1])
1<x>.reshape(<x>.shape[0], -1).sum(1)
1<x>.reshape(-1, <q>)
~1<x>.permute(*range(<x>.ndim - 1, -1, -1))
1<x> @ torch.ones(<x>.shape[-1], <P>)
1<x> @ <y>
1F.linear(<x>, torch.ones(<P>, <x>.size(-1)))
1<x>.index_select(<d>, torch.arange(min(<x>.shape[<d>], <k>)))
1<x>.expand(*<x>.shape[:-1], <P>)
1<x> + torch.arange(<x>.shape[-1])
~1<x> * torch.arange(<x>.size(0)).reshape(-1, *([1] * (<x>.ndim - 1)))
1<x> / (<x>.shape[<d>] + 1) ** 0.5
1torch.outer(<x>.flatten()[:3], <y>.flatten()[:3])
2<x>.mT
2<x> @ <x>.mT
2<x>.mT @ <x>
2<x> @ <y>.mT
2torch.tril(<x>)
2torch.tril(<x>, <I>)
2torch.triu(torch.ones(<A>, <A>), 1) * <S>
2<x>[:, 1:]
2<x>[:, :<N>]
2<x>[1:, None, ::2]
2<x>[:, -1]
2<x>.sum((0, 1))
2<x>.mean((0, -1), keepdim=True)
2<x>.flatten(0, 1)
~2<x>.reshape(<x>.shape[0] * <x>.shape[1], *<x>.shape[2:])
2<x>.view(1, -1, <x>.shape[-1])
2<x>.unsqueeze(1) + <x>.unsqueeze(0)
2<x>.diagonal()
2F.layer_norm(<x>, <x>.shape[-2:])
~2torch.einsum("...ij,...kj->...ik", <x>, <x>)
"""

# (weight, template).  Names bound inside loops and helpers (i, j, a, n, ..) are never those of inputs.
STATEMENTS = [
    (14, "<v> = <T>"),
    (2, "<v> = <I>"),
    (1, "<v> = <f>"),
    (1, "<v> = <C>"),
    (5, "if <C>:\n    <v> = <T>\nelse:\n    <v> = <T>"),
    (2, "<v> = <T>\nif <C>:\n    <v> = <v> * <S>"),
    (1, "if <C>:\n    <v> = <T>\nelif <C>:\n    <v> = <T>\nelse:\n    <v> = <x>"),
    (2, "if <C>:\n    return <T>"),
    (1, "if <C>:\n    return <I>, <x>"),
    (1, "if <C>:\n    <v> = <I>\nelse:\n    <v> = <I>"),
    (0.5, "<v> = <x>\nfor i in range(<N>):\n    <v> = <v> * 0.5 + i"),
    (0.5, "<v> = <x>\nfor i in range(<N>):\n    if i == <k>:\n        continue\n    <v> = <v> + <y> * i"),
    (0.05, "<v> = 0\nfor i, s in enumerate(<x>.shape):\n    <v> += i * s"),
    (1, "<v> = 0\nfor i in range(<x>.ndim):\n    <v> += i * <x>.shape[i]"),
    (0.2, "<v> = <x>\nfor s in <y>.shape:\n    if s <r> <k>:\n        <v> = <v> + s"),
    (0.5, "<v> = []\nfor i in range(<P>):\n    <v>.append(<x> * i)\n<w> = torch.stack(<v>).sum(0)"),
    (1, "<w> = <I>\n<v> = <x>\nwhile <w> > 1:\n    <w> = <w> // 2\n    <v> = <v> + <w>"),
    (1, "<w> = 0\nwhile <w> < <A> and <w> < 4:\n    <w> += 1 + (<C>)\n<v> = <x> * <w>"),
    (0.5, "<v> = torch.cat([<x>[j] for j in range(<x>.shape[0])] or [<x>], 0)"),
    (0.2, "<v> = [s * 2 for s in <x>.shape if s > 1]"),
    (0.3, "<v> = [<x> * s for s in <x>.shape]"),
    (0.05, "<v> = {i: s for i, s in enumerate(<x>.shape)}"),
    (1, "<v> = sorted([<A>, <I>, <k>])"),
    (0.3, "<v>, <w> = divmod(<I>, <q>)"),
    (0.2, "<v>, *<w> = (*<x>.shape, <k>)"),
    (2, "try:\n    <w> = 6 // (<A> - <k>)\nexcept ZeroDivisionError:\n    <w> = <k>\n<v> = <x> * <w>"),
    (1, "try:\n    <v> = [1, 2, 3][<A>]\nexcept IndexError:\n    <v> = -1"),
    (1, "try:\n    <v> = {1: <x>, 2: <y>}[<A>]\nexcept KeyError:\n    <v> = <T>"),
    (0.3, "try:\n    <v> = <x> + <y>\nexcept Exception:\n    <v> = <x>"),
    (0.2, "try:\n    <v> = <x>.reshape(<q>, -1)\nexcept Exception:\n    <v> = <x> * <k>"),
    (1, "try:\n    if <C>:\n        raise ValueError\n    <v> = <T>\nexcept ValueError:\n    <v> = <x>"),
    (1, "try:\n    <v> = <x> * (<I> // <A>)\nexcept ZeroDivisionError:\n    <v> = <x>\nfinally:\n    <w> = <I>"),
    (
        2,
        "def <h>(a, n=<I>):\n    if a.ndim and a.shape[0] > n:\n        return a + n\n    return a * <S>\n<v> = <h>(<x>)",
    ),
    (1, "def <h>(a):\n    return a.sum() if a.numel() <r> <A> else a\n<v> = <h>(<x>) + <h>(<y>)"),
    (0.2, "<h> = lambda a, *n: a.reshape(-1)[:sum(n)]\n<v> = <h>(<x>, *<y>.shape)"),
    (1, "<v> = <x> * 1\n<v>.add_(<S>)"),
    (1, "<v> = <x> + 0\n<v>.mul_(<y>)"),
    (1, "<v> = torch.zeros(<x>.shape)\n<v>.add_(<x>)\nif <C>:\n    <v>.mul_(<A>)"),
    (1, "<v> = <x> * 1\n<v> += <A>\n<v> *= <y>"),
    (1, "<v> = <x> * 2\n<v>[:1] = <S>"),
    (1, "if <C>:\n    <x>.add_(<A>)"),
    (1, "<x>.mul_(<S>)"),
    (1, "assert not (<R>)"),
    (1, "if <R>:\n    raise ValueError(f'{<A>}')"),
    (1, "<v> = f'{<A>}x{<x>.ndim}'\n<w> = {'2x1': 3, '1x2': 4, '3x2': 5}.get(<v>, 0)"),
    (1, "<v> = (<A>, <I>) if <C> else (<k>, <A>)\n<w> = <x> * <v>[0]"),
    (0.3, "<v> = <x>.reshape(-1).chunk(<P>)\n<w> = len(<v>)"),
    (1, "<v> = [<x>, <y>]\nif <C>:\n    <v>.append(<T>)\n<w> = <v>[-1] * len(<v>)"),
]

_LINE = re.compile(r"(~*)(?:(\d)(?=\S))?(.*)")


def _grammar(text: str) -> tuple[list[tuple[int, str]], list[float]]:
    """Templates with the least rank of <x>, and their weights."""
    matches = [_LINE.fullmatch(line) for line in text.strip().splitlines()]
    return [(int(m[2] or 0), m[3]) for m in matches], [0.2 ** len(m[1]) for m in matches]


_INTS, _FLOATS, _CONDITIONS, _TENSORS = map(_grammar, (INTS, FLOATS, CONDITIONS, TENSORS))
_NO_GRADIENT = ("flip", "[:1] =")  # thunder 0.2.6 has none for the first and a wrong one for the second
_SLOT = re.compile(r"<([a-zA-Z])>")
_SIZES = [0, 1, 1, 1, 2, 2, 2, 3, 3, 4, 4, 5, 6, 8]
_LARGEST = 1000  # of a value or of a tensor's number of elements: keeps float comparisons meaningful and calls fast


class _Rejected(Exception):
    """No candidate fits; try another template."""


class _Writer:
    """Writes one program, statement by statement.

    Each candidate is run eagerly on all combos and is kept only if it works on nearly all of them: blind generation
    would spend most calls on programs that raise.
    """

    def __init__(self, seed: int, grad: bool | None):
        self.rng = random.Random(seed)
        self.seed, self.lines, self.names = seed, [], itertools.count()
        self.combos, self.params = _family(self.rng, grad)
        self.grad = "grad" in repr(self.combos)
        self.lost = self.returned = 0
        self.envs: list[dict] = self.run(self.lines)
        self.note()

    # -- running candidates

    def run(self, lines: list[str]) -> list[dict] | None:
        """The local variables on each combo that neither raised nor returned early; None if a value grew too big."""
        fn = load(_function(self.params, [*lines, "return {'live': True, **locals()}"]))
        program = Program(self.seed, "", (), (), "", tuple(self.combos), ())
        envs, self.lost, self.returned = [], 0, 0
        for index in range(len(self.combos)):
            args, kwargs, _ = build(program, Call(index, 0))
            try:
                env = fn(*args, **kwargs)
            except Exception:
                self.lost += 1
                continue
            if isinstance(env, dict) and "live" in env:
                if not all(map(_moderate, env.values())):
                    return None
                envs.append(env)
            else:
                self.returned += 1
        return envs

    def add(self, lines: list[str]) -> bool:
        before = self.lost, self.returned
        envs = self.run(self.lines + lines)
        total = len(self.combos)
        new = self.lost - before[0]
        ok = (
            envs is not None
            and (new == 0 or self.lost <= total * 0.15)
            and self.returned <= total * 0.4
            and len(envs) > total * 0.5
        )
        if ok:
            self.lines, self.envs = self.lines + lines, envs
            self.note()
        else:
            self.lost, self.returned = before
        return ok

    def note(self) -> None:
        """Which variables exist on every live combo, oldest first, and the least rank of the tensors."""
        common = [name for name in self.envs[0] if name != "live" and all(name in env for env in self.envs)]
        values = {name: [env[name] for env in self.envs] for name in common}
        self.ranks = {n: min(v.ndim for v in vs) for n, vs in values.items() if _all_are(vs, torch.Tensor)}
        self.numbers = [n for n, vs in values.items() if _all_are(vs, int) and n not in ("i", "j", "s")]
        self.floats = [n for n, vs in values.items() if _all_are(vs, (int, float)) and n not in self.numbers]
        self.flags = [n for n, vs in values.items() if _all_are(vs, (bool, type(None)))]
        self.others = [n for n in common if n not in self.ranks and n not in ("i", "j", "s")]

    def values(self, expression: str) -> list:
        code = compile(expression, "<slot>", "eval")
        results = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `x.shape[0] is not None` and the like
            for env in self.envs:
                try:
                    results.append(eval(code, {**_NAMESPACE, **env}))
                except Exception as e:
                    results.append(e)
        return results

    # -- filling slots

    def fill(self, template: str, rank: int = 0, depth: int = 0) -> str:
        memo: dict[str, str] = {}

        def slot(match) -> str:
            key = match[1]
            if key in "xyz":
                if key not in memo:
                    memo[key] = self.tensor(rank if key == "x" else 0, avoid=memo.get("x"))
                return memo[key]
            if key in "vwh":
                return memo.setdefault(key, f"{key}{next(self.names)}")
            if key in "de":
                if "x" not in memo:
                    memo["x"] = self.tensor(rank)
                return str(self.dim(memo["x"]))
            return self.simple(key, depth)

        # <x> first: <d> and <e> speak of it.
        return _SLOT.sub(slot, template)

    def simple(self, key: str, depth: int) -> str:
        rng = self.rng
        if key == "k":
            return str(rng.choice([0, 1, 1, 2, 2, 3, 4, 5]))
        if key == "q":
            return str(rng.choice([2, 2, 3, 4, -2, -3]))
        if key == "r":
            return rng.choice(["==", "!=", "<", "<=", ">", ">="])
        if key == "A":
            return self.size()
        if key == "I":
            return self.integer(depth)
        if key == "N":
            return self.integer(depth, 0, 9)
        if key == "P":
            return self.integer(depth, 1, 9)
        if key == "f":
            return self.real(depth)
        if key == "S":
            return self.real(depth) if rng.random() < 0.3 else self.integer(depth)
        if key == "C":
            return self.condition(depth)
        if key == "R":
            return self.condition(depth, 0, 0.15)
        if key == "T":
            return self.expression(depth)
        raise AssertionError(key)

    def tensor(self, rank: int = 0, avoid: str | None = None) -> str:
        names = [n for n, r in self.ranks.items() if r >= rank]
        if not names:
            raise _Rejected
        if len(names) > 1 and avoid in names and self.rng.random() < 0.8:
            names.remove(avoid)
        # Later ones more often: chains of dependent statements rather than many short ones.
        return self.rng.choices(names, [1 + i for i in range(len(names))])[0]

    def dim(self, name: str) -> int:
        rank = self.ranks[name]
        if not rank:
            raise _Rejected
        return self.rng.randrange(-rank, rank)

    def size(self) -> str:
        rng = self.rng
        if self.numbers and rng.random() < 0.15:
            return rng.choice(self.numbers)
        name = self.tensor(1 if any(self.ranks.values()) else 0)
        if not self.ranks[name]:
            return f"{name}.{rng.choice(['ndim', 'numel()'])}"
        forms = [f"{name}.shape[{self.dim(name)}]"] * 8 + [f"{name}.size({self.dim(name)})"] * 2
        forms += [f"len({name})", f"{name}.numel()", f"{name}.ndim", f"{name}.dim()", f"{name}.size()[0]"]
        return rng.choice(forms)

    def pick(self, grammar, depth: int) -> str:
        rank, template = self.rng.choices(*grammar)[0]
        self.check(template)
        return self.fill(template, rank, depth + 1)

    def check(self, template: str) -> None:
        if self.grad and any(part in template for part in _NO_GRADIENT):
            raise _Rejected

    def integer(self, depth: int, low: int = -50, high: int = 50) -> str:
        for _ in range(8):
            try:
                simple = depth > 2 or self.rng.random() < 0.4
                text = self.size() if simple else self.pick(_INTS, depth)
            except _Rejected:
                continue
            values = self.values(text)
            if all(isinstance(v, int) and low <= v <= high for v in values):
                return text
        return f"min(max({self.size()}, {low}), {high})" if low >= 0 else self.size()

    def real(self, depth: int) -> str:
        for _ in range(8):
            try:
                text = self.rng.choice(self.floats) if self.floats and self.rng.random() < 0.2 else None
                text = text or self.pick(_FLOATS, depth)
            except _Rejected:
                continue
            if all(isinstance(v, (int, float)) and abs(v) < 100 for v in self.values(text)):
                return text
        return f"({self.size()} * 0.5)"

    def condition(self, depth: int, least: float = 0, most: float = 1) -> str:
        """Preferably one that comes out both ways; `least` and `most`: the share of combos on which it is true."""
        fallback = None
        for _ in range(6 if most == 1 else 25):
            try:
                text = self.rng.choice(self.flags) if self.flags and self.rng.random() < 0.1 else None
                text = text or self.pick(_CONDITIONS, depth)
            except _Rejected:
                continue
            values = self.values(text)
            if any(isinstance(v, (Exception, torch.Tensor)) for v in values):
                continue
            share = sum(map(bool, values)) / len(values)
            if least < share < most:
                return text
            if most == 1 and (fallback is None or self.rng.random() < 0.1):
                fallback = text
        if fallback is None:
            raise _Rejected
        return fallback

    def expression(self, depth: int) -> str:
        for _ in range(12):
            try:
                text = self.pick(_TENSORS, depth)
            except _Rejected:
                continue
            values = self.values(text)
            good = sum(isinstance(v, torch.Tensor) and _moderate(v) for v in values)
            if good == len(values) or (good > 0.85 * len(values) and self.rng.random() < 0.3):
                return text
        raise _Rejected

    # -- the program

    def write(self) -> Program:
        rng, wanted = self.rng, self.rng.choice([2, 2, 3, 3, 3, 4, 4, 5, 6, 8])
        weights, templates = zip(*STATEMENTS, strict=True)
        for _ in range(60):
            if wanted <= 0:
                break
            try:
                template = rng.choices(templates, weights)[0]
                self.check(template)
                lines = self.fill(template).split("\n")
            except _Rejected:
                continue
            wanted -= self.add(lines)
        # Everything that is computed should be looked at: what is not returned is dead code.
        names = [n for n in [*self.ranks, *self.others] if n not in self.params_names() or rng.random() < 0.1]
        names = [n for n in names if not n.startswith("h")]
        returns = names[-6:] or [self.tensor()]
        extra = rng.random()
        if extra < 0.3:
            returns.append(self.integer(0))
        elif extra < 0.4:
            returns.append(self.condition(0))
        elif extra < 0.5:
            returns.append(f"{self.tensor()}.shape")
        form = rng.choice(["tuple", "tuple", "list", "dict", "nested"]) if len(returns) > 1 else "single"
        return Program(
            self.seed, self.params, tuple(self.lines), tuple(returns), form, tuple(self.combos), self.schedule()
        )

    def params_names(self) -> set[str]:
        return set(re.findall(r"\w+", self.params))

    def schedule(self) -> tuple[Call, ...]:
        rng = self.rng
        order = list(range(len(self.combos))) * 2
        rng.shuffle(order)
        order += rng.sample(range(len(self.combos)), min(2, len(self.combos)))
        seen: Counter[int] = Counter()
        calls = []
        for index in order:
            calls.append(Call(index, seen[index], no_grad=rng.random() < 0.05))
            seen[index] += 1
        return tuple(calls)


_NAMESPACE = _namespace()


def _all_are(values, kind) -> bool:
    return all(isinstance(v, kind) for v in values)


def _moderate(value) -> bool:
    if isinstance(value, torch.Tensor):
        if value.numel() > _LARGEST or value.ndim > 6:
            return False
        # NaN and inf hide differences: whatever is computed from them compares equal.
        return not value.numel() or bool(value.detach().abs().max() < _LARGEST if value.dtype != torch.bool else True)
    if isinstance(value, (int, float)):
        return abs(value) < _LARGEST
    if isinstance(value, (list, tuple)):
        return len(value) < 20 and all(map(_moderate, value))
    return True


# Those of the tensors among the arguments, and how often.
_DTYPES = (torch.float32, torch.float64, torch.int64, torch.bool)
_WEIGHTS = (10, 2, 2, 1)


def _family(rng: random.Random, grad: bool | None) -> tuple[list[Combo], str]:
    """The inputs of one program: 10 to 14 combos that mostly go together, and the parameters they are passed to."""
    count = rng.choices([1, 2, 3], [3, 5, 2])[0]
    ranks = rng.choices(range(5), [1, 5, 8, 4, 2], k=count)
    relations = rng.choices(["same", "suffix", "matmul", "free"], [6, 4, 1, 2], k=count)
    dtypes = [rng.choices(_DTYPES, _WEIGHTS)[0] for _ in range(count)]
    vary_rank, vary_dtype, aliases = rng.random() < 0.15, rng.random() < 0.1, rng.random() < 0.15
    with_grad = rng.random() < 0.35 if grad is None else grad
    some_grad = rng.random() < 0.3  # else all of them
    names, extras = ["x", "y", "z"][:count], {}
    for name, values in [
        ("n", [0, 1, 2, 3, -1]),
        ("n", [1, True, 1.0, 2]),  # equal, of the same hash, and not the same
        ("flag", [True, False]),
        ("scale", [0.5, 1.0, -2.0, 0.0]),
        ("mode", [None, True]),
        ("items", ["tensor", "number"]),
        ("opts", ["tensor", "number"]),
    ]:
        if rng.random() < 0.1:
            extras[name] = values
    extras = dict(list(extras.items())[:2])
    style = {name: rng.choice(["positional", "keyword", "default"]) for name in extras}
    style |= {name: "positional" for name in extras if name in ("items", "opts")}

    def shape_of(i: int, first: tuple, pool: list[int]) -> tuple[int, ...]:
        def draw(rank):
            return tuple(1 if rng.random() < 0.15 else rng.choice(pool) for _ in range(rank))

        relation = relations[i] if i else "free"
        rank = max(0, ranks[i] + (rng.choice([-1, 1]) if vary_rank and rng.random() < 0.3 else 0))
        if relation == "same":
            shape = first
        elif relation == "suffix":
            shape = first[max(0, len(first) - rank) :]
        elif relation == "matmul" and first:
            shape = (first[-1], *draw(1)) if len(first) < 3 else (*first[:-2], first[-1], *draw(1))
        else:
            shape = draw(min(rank, 4))
        if relation in ("same", "suffix"):
            shape = tuple(1 if rng.random() < 0.15 else s for s in shape)
        while math.prod(shape) > 200:
            shape = tuple(max(1, s // 2) for s in shape)
        return shape

    def tensor(shape, dtype, i) -> TensorSpec:
        if vary_dtype and rng.random() < 0.3:
            dtype = rng.choice([torch.float32, torch.int64, torch.bool, torch.float64])
        needs = with_grad and dtype.is_floating_point and not (some_grad and (i or rng.random() < 0.4))
        return TensorSpec(shape, dtype, needs)

    def combo() -> Combo:
        pool = rng.sample(_SIZES, 2)
        args, first = [], ()
        for i in range(count):
            shape = shape_of(i, first, pool)
            first = first if i else shape
            args.append(tensor(shape, dtypes[i], i))
        if aliases and count > 1 and rng.random() < 0.4:
            args[1] = Same()
        kwargs = {}
        for name, values in extras.items():
            value = rng.choice(values)
            if name == "items":
                value = [tensor(first, torch.float32, 0), rng.choice([1, 2, 2.5])]
                value += [3] if rng.random() < 0.2 else []
            elif name == "opts":
                value = {"w": tensor(first, torch.float32, 0), "k": rng.choice([0, 1, 2])}
            if style[name] == "positional":
                args.append(value)
            elif style[name] == "keyword" or rng.random() < 0.7:
                kwargs[name] = value
        return Combo(tuple(args), kwargs)

    wanted, combos = rng.randint(10, 14), []
    for _ in range(40):  # programs over scalars have fewer different ones
        new = combo()
        if len(combos) < wanted and repr(new) not in map(repr, combos):
            combos.append(new)
    positional = [*names, *(n for n in extras if style[n] == "positional")]
    keywords = [n if style[n] == "keyword" else f"{n}={extras[n][0]!r}" for n in extras if style[n] != "positional"]
    keywords.sort(key=lambda p: "=" in p)
    return combos, ", ".join([*positional, *(["*", *keywords] if keywords else [])])


def generate(seed: int, *, grad: bool | None = None) -> Program:
    """The program of this seed.  `grad`: whether its float inputs require gradients (default: a third of programs)."""
    return _Writer(seed, grad).write()


# ---------------------------------------------------------------------------------------------------------------------
# Running programs

WAYS: dict[str, Callable] = {
    "speckey": lambda fn: thunder.jit(fn, cache=speckey.SpecKeyCache()),
    "constant": lambda fn: thunder.jit(fn),
    "symbolic": lambda fn: thunder.jit(fn, cache="symbolic values"),
}


@dataclass(frozen=True)
class Outcome:
    raised: Exception | None = None
    result: object = None
    inputs: object = None  # afterwards
    grads: object = None

    def __str__(self):
        return "" if self.raised is None else f"{type(self.raised).__name__}: {str(self.raised).splitlines()[:1]}"


@dataclass(frozen=True)
class Failure:
    program: Program
    kind: str  # "wrong", "error", "thunder_cannot", "thunder_differs"
    call: int  # index in program.calls
    difference: str

    def __str__(self):
        p, call = self.program, self.program.calls[self.call]
        before = dict.fromkeys(repr(p.combos[c.combo]) for c in p.calls[: self.call])
        return (
            f"{self.kind}: seed {p.seed}, call {self.call}{' under no_grad' if call.no_grad else ''}: "
            f"{self.difference}\n{p.source()}"
            + "".join(f"    {combo}\n" for combo in before)
            + f" -> {p.combos[call.combo]}\n"
        )


@dataclass
class Report:
    """Sums over programs.  All but the last five count calls; every call is in exactly one of the first six."""

    right: int = 0
    raised: int = 0  # eager raises, and so does the compiled program
    wrong: int = 0
    errors: int = 0
    thunder_cannot: int = 0  # thunder raises on this input alone as well, eager does not
    thunder_differs: int = 0  # thunder, compiled for this input alone, differs from eager as well
    programs: int = 0
    failing_programs: int = 0
    compiles: int = 0
    input_shapes: int = 0
    seconds: float = 0.0
    failures: list[Failure] = field(default_factory=list)
    unsupported: list[Failure] = field(default_factory=list)

    @property
    def calls(self) -> int:
        return self.right + self.raised + self.wrong + self.errors + self.thunder_cannot + self.thunder_differs

    @property
    def useful(self) -> float:
        """The share of calls that had a value to compare, in eager and in thunder."""
        return 1 - (self.raised + self.thunder_cannot + self.thunder_differs) / max(self.calls, 1)

    def __add__(self, other: Report) -> Report:
        return Report(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Report)))

    def __str__(self):
        names = [f.name for f in fields(Report) if f.name not in ("failures", "unsupported", "seconds")]
        counts = ", ".join(f"{name} {getattr(self, name)}" for name in names)
        return f"calls {self.calls} ({self.useful:.0%} useful): {counts}, seconds {self.seconds:.1f}"


def difference(expected, found, where: str = "result") -> str | None:
    """What tells two values apart; torch.Size and tuple are alike, True and 1 are not."""
    if isinstance(expected, torch.Tensor):
        if not isinstance(found, torch.Tensor):
            return f"{where}: a tensor, not {type(found).__name__}"
        for attribute in ("shape", "dtype"):
            a, b = getattr(expected, attribute), getattr(found, attribute)
            if a != b:
                return f"{where}.{attribute}: {a}, not {b}"
        if not torch.allclose(expected.double(), found.double(), rtol=1e-3, atol=1e-4, equal_nan=True):
            return f"{where}: {expected.flatten()[:8].tolist()}, not {found.flatten()[:8].tolist()}"
        return None
    kind = tuple if isinstance(expected, torch.Size) else type(expected)
    if (tuple if isinstance(found, torch.Size) else type(found)) is not kind:
        return f"{where}: {expected!r} of type {kind.__name__}, not {found!r} of type {type(found).__name__}"
    if kind in (list, tuple, dict):
        if len(expected) != len(found) or (kind is dict and list(expected) != list(found)):
            return f"{where}: {expected!r}, not {found!r}"[:300]
        keys = expected if kind is dict else range(len(expected))
        return next(filter(None, (difference(expected[k], found[k], f"{where}[{k!r}]") for k in keys)), None)
    if kind is float:
        same = math.isclose(expected, found, rel_tol=1e-6, abs_tol=1e-9) or (expected != expected and found != found)
    else:
        same = expected == found
    return None if same else f"{where}: {expected!r}, not {found!r}"


def _tensors(value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple, dict)):
        return [t for v in (value.values() if isinstance(value, dict) else value) for t in _tensors(v)]
    return []


def outcome(fn: Callable, program: Program, call: Call) -> Outcome:
    args, kwargs, tensors = build(program, call)
    try:
        with torch.no_grad() if call.no_grad else torch.enable_grad():
            result = fn(*args, **kwargs)
        inputs = [t.detach().clone() for t in tensors]
        leaves = [t for t in tensors if t.requires_grad and t.is_leaf]
        grads = None
        if leaves and not call.no_grad:
            # Distinct weights: a permuted or repeated gradient must show.  An output that thunder says needs a
            # gradient and eager does not (and the other way round) contributes nothing, so both are asked alike.
            outputs = [t for t in _tensors(result) if t.requires_grad and t.dtype.is_floating_point]
            weights = [(torch.arange(t.numel(), dtype=t.dtype) % 5 - 1).reshape(t.shape) for t in outputs]
            grads = (
                torch.autograd.grad(outputs, leaves, weights, allow_unused=True) if outputs else [None] * len(leaves)
            )
            grads = [torch.zeros_like(t) if g is None else g for g, t in zip(grads, leaves, strict=True)]
    except Exception as e:
        return Outcome(raised=e)
    return Outcome(None, result, inputs, grads)


def compare(a: Outcome, b: Outcome) -> str | None:
    if a.raised or b.raised:
        return None if a.raised and b.raised else f"raises {a if a.raised else b}"
    return (
        difference(a.result, b.result)
        or difference(a.inputs, b.inputs, "inputs afterwards")
        or difference(a.grads, b.grads, "gradients")
    )


_MULTIPLE_VIEWS = "This view is the output of a function that returns multiple views"


def run_program(program: Program, compile_fn: Callable, *, combos: int | None = None) -> Report:
    """Make all calls of a program with one compiled callable, and sort each into one of the counts of the report.

    ``combos`` is the most different inputs to use; the calls with others are left out.
    """
    start, report = time.perf_counter(), Report(programs=1)
    fn, cannot = load(program.source()), {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = compile_fn(fn)
        for index, call in enumerate(program.calls):
            if combos is not None and call.combo >= combos:
                continue
            eager, found = outcome(fn, program, call), outcome(compiled, program, call)
            differs = compare(eager, found)
            if differs is None:
                report.right += eager.raised is None
                report.raised += eager.raised is not None
                continue
            inputs = (call.combo, call.no_grad)
            alone = cannot.get(inputs) or outcome(thunder.jit(fn), program, call)
            if alone.raised:
                cannot[inputs] = alone  # tracing fails whatever the data; it would again, at the full price
            if found.raised:
                kind = "thunder_cannot" if alone.raised else "errors"
            else:
                kind = "wrong" if compare(found, alone) else "thunder_differs"
                # What thunder compiles writes to no view, so it gives a result where autograd refuses an in-place
                # write to one of several views (or fails in a way of its own: it takes empty tensors for shared ones).
                no_oracle = alone.raised and eager.raised and _MULTIPLE_VIEWS in str(eager.raised)
                if kind == "wrong" and (no_oracle or (not alone.raised and compare(eager, alone))):
                    # Thunder's program is wrong, in one way with plain sizes and in another with free ones
                    # (gradients of in-place writes).  A hit has to be what compiling afresh gives.
                    kind = "wrong" if compare(found, outcome(compile_fn(fn), program, call)) else "thunder_differs"
            setattr(report, kind, getattr(report, kind) + 1)
            (report.failures if kind in ("wrong", "errors") else report.unsupported).append(
                Failure(program, kind, index, differs if eager.raised is None else f"does not raise {eager}")
            )
    report.failing_programs = bool(report.failures)
    report.compiles = thunder.cache_misses(compiled)
    report.input_shapes = len({repr(program.combos[c.combo]) for c in program.calls})
    report.seconds = time.perf_counter() - start
    return report


def run(seeds, compile_fn: Callable, *, grad: bool | None = None, combos: int | None = None) -> Report:
    return sum((run_program(generate(seed, grad=grad), compile_fn, combos=combos) for seed in seeds), Report())


# ---------------------------------------------------------------------------------------------------------------------
# Making a failing program small


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _block(body: tuple[str, ...], start: int) -> int:
    """The end of the statement that begins at a line."""
    end, indent = start + 1, _indent(body[start])
    while end < len(body) and (
        _indent(body[end]) > indent
        or (_indent(body[end]) == indent and body[end].strip().startswith(("else", "elif", "except", "finally")))
    ):
        end += 1
    return end


def _smaller(p: Program):
    for i in reversed(range(len(p.calls))):
        yield replace(p, calls=p.calls[:i] + p.calls[i + 1 :])
    for i in range(len(p.returns)):
        if len(p.returns) > 1:
            yield replace(p, returns=p.returns[:i] + p.returns[i + 1 :])
    if p.form != "single" and len(p.returns) == 1:
        yield replace(p, form="single")
    for i in range(len(p.body)):
        end = _block(p.body, i)
        yield replace(p, body=p.body[:i] + p.body[end:])
        yield replace(p, body=p.body[:i] + p.body[i + 1 :])
        if p.body[i].endswith(":"):
            inner = itertools.takewhile(lambda line: _indent(line) > _indent(p.body[i]), p.body[i + 1 : end])  # noqa: B023
            yield replace(p, body=(*p.body[:i], *(line[4:] for line in inner), *p.body[end:]))


def minimize(program: Program, compile_fn: Callable) -> tuple[Program, Failure | None]:
    """Drop calls, results and statements as long as a failure of the same kind remains."""

    def first(candidate: Program, kind: str | None = None) -> Failure | None:
        report = run_program(candidate, compile_fn)
        failures = report.failures + report.unsupported
        return next((f for f in failures if kind in (None, f.kind)), None)

    failure = first(program)
    if failure is None:
        return program, None
    program = replace(program, calls=program.calls[: failure.call + 1])
    shrunk = True
    while shrunk:
        shrunk = False
        for candidate in _smaller(program):
            try:
                smaller = first(candidate, failure.kind)
            except SyntaxError:
                continue
            if smaller is not None:
                program, failure, shrunk = candidate, smaller, True
                break
    return program, failure


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.program_fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--cache", choices=list(WAYS), default="speckey")
    parser.add_argument("--seeds", default="0:200", help="first:last+1, or one seed")
    parser.add_argument("--grad", action="store_true", help="all float inputs require gradients, in every program")
    parser.add_argument("--verbose", action="store_true", help="print calls that thunder cannot do, and each program")
    parser.add_argument("--minimize", type=int, metavar="SEED", help="print a small program that fails like this one")
    parser.add_argument("--combos", type=int, help="the most different inputs per program (default: all, about 12)")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    compile_fn, grad = WAYS[options.cache], options.grad or None
    if options.minimize is not None:
        _, failure = minimize(generate(options.minimize, grad=grad), compile_fn)
        print(failure or "no failure")
        return failure is not None
    first, _, last = options.seeds.partition(":")
    total = Report()
    for seed in range(int(first), int(last or int(first) + 1)):
        program = generate(seed, grad=grad)
        report = run_program(program, compile_fn, combos=options.combos)
        if options.verbose:
            print(program.source(), report, "\n", *report.unsupported[:1], sep="\n")
        for failure in report.failures[:1]:
            print(failure, flush=True)
        total += report
    print(f"{options.cache}: {total}")
    return bool(total.failures)


if __name__ == "__main__":
    sys.exit(main())
