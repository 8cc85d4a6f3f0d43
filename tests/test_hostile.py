"""Arguments and programs that nobody would pass: the right result, or thunder's own refusal."""

import collections
import math
import re

import pytest
import thunder
import torch

import speckey
from speckey import entries
from speckey.cache import table_of
from speckey.codegen import source_of
from tests.helpers import assert_same, compiled


def as_thunder(fn, *calls, jfn=None):
    """Each call gives what eager gives, or raises the type of error that thunder raises; the compiled callable.

    ``calls`` are functions that make (args, kwargs) anew.
    """
    jfn = compiled(fn) if jfn is None else jfn
    for make in calls:
        args, kwargs = make()
        try:
            found = jfn(*args, **kwargs)
        except Exception as error:
            args, kwargs = make()
            with pytest.raises(type(error)):
                thunder.jit(fn)(*args, **kwargs)
        else:
            args, kwargs = make()
            assert_same(found, fn(*args, **kwargs))
    return jfn


def call(*args, **kwargs):
    return lambda: (args, kwargs)


# -- unusual tensors -------------------------------------------------------------------------------------


class Named(torch.Tensor):
    pass


class Lying(torch.Tensor):
    """Says that its shape is another one."""

    @property
    def shape(self):
        return torch.Size([7])


class Doubling(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs or {})
        return out * 2 if func is torch.Tensor.add else out


def _quantized(n):
    return torch.quantize_per_tensor(torch.arange(float(n)), 0.1, 0, torch.quint8)


TENSORS = {
    "subclass": lambda n: torch.ones(n).as_subclass(Named),
    "lying subclass": lambda n: torch.ones(n).as_subclass(Lying),
    "overriding subclass": lambda n: torch.ones(n).as_subclass(Doubling),
    "sparse": lambda n: torch.eye(n).to_sparse(),
    "sparse csr": lambda n: torch.eye(n).to_sparse_csr(),
    "quantized": _quantized,
    "nested": lambda n: torch.nested.nested_tensor([torch.ones(n), torch.ones(2)]),
    "jagged": lambda n: torch.nested.nested_tensor([torch.ones(n), torch.ones(2)], layout=torch.jagged),
    "zero-dim": lambda n: torch.tensor(float(n)),
    "empty": lambda n: torch.ones(0, n),
    "huge rank": lambda n: torch.ones(*[1] * 20, n),
    "meta": lambda n: torch.ones(n, device="meta"),
    "complex": lambda n: torch.ones(n, dtype=torch.complex64),
    "conjugated": lambda n: torch.full((n,), 1 + 2j).conj(),
    "negated view": lambda n: torch.full((n,), 1 + 2j).conj().imag,
    "bool": lambda n: torch.ones(n, dtype=torch.bool),
    "expanded": lambda n: torch.ones(1).expand(n),
    "flipped strides": lambda n: torch.arange(4.0 * n).reshape(4, n).T,
    "parameter": lambda n: torch.nn.Parameter(torch.ones(n)),
    "with an attribute": lambda n: setattr(t := torch.ones(n), "note", n) or t,
    "infinite": lambda n: torch.tensor([math.inf, -math.inf, math.nan] * n),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", TENSORS)
def test_unusual_tensors(kind):
    make = TENSORS[kind]

    def fn(x):
        return x + x.shape[0] if x.ndim and x.shape[0] > 3 else x + 1

    try:
        make(2)
    except (RuntimeError, NotImplementedError) as error:
        pytest.skip(f"not in this torch: {error}")
    eager_fails = False
    jfn = compiled(fn)
    for n in (2, 5, 2, 3, 6):
        try:
            expected = fn(make(n))
        except Exception:
            eager_fails = True
            continue
        try:
            found = jfn(make(n))
        except Exception as error:
            with pytest.raises(type(error)):
                thunder.jit(fn)(make(n))
            continue
        assert type(found) is type(expected) or type(found) is torch.Tensor
        assert found.shape == expected.shape
        assert found.device == expected.device
        if found.device.type != "meta":
            a, b = (t.to_dense() if t.layout is not torch.strided else t for t in (found, expected))
            a, b = (t.as_subclass(torch.Tensor) for t in (a, b))
            if kind == "overriding subclass":  # thunder does not call __torch_function__ where it traces
                b = thunder.jit(fn)(make(n)).as_subclass(torch.Tensor)
            torch.testing.assert_close(a, b, equal_nan=True)
    assert not eager_fails or kind in ("quantized", "nested", "jagged", "sparse", "sparse csr")


@pytest.mark.filterwarnings("ignore")
def test_kinds_of_tensors_in_turn_do_not_serve_each_other():
    jfn = compiled(lambda x: x * 3)
    for _ in range(2):
        for kind in ("complex", "bool", "expanded", "parameter", "zero-dim", "sparse", "conjugated"):
            make = TENSORS[kind]
            try:
                found = jfn(make(3))
            except Exception as error:
                with pytest.raises(type(error)):
                    thunder.jit(lambda x: x * 3)(make(3))
                continue
            expected = make(3) * 3
            assert found.dtype == expected.dtype
            assert found.layout == expected.layout
            torch.testing.assert_close(found.to_dense().resolve_conj(), expected.to_dense().resolve_conj())


# -- numbers and objects -----------------------------------------------------------------------------------


class Int(int):
    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0

    def __repr__(self):
        raise RuntimeError("no text")

    def __bool__(self):
        return False


class Text(str):
    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0


class Equal:
    """Equal to everything."""

    def __init__(self, factor):
        self.factor = factor

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0

    def __repr__(self):
        raise RuntimeError("no text")


class Refusing(Equal):
    def __eq__(self, other):
        raise RuntimeError("not to be compared")

    def __bool__(self):
        raise RuntimeError("neither true nor false")

    def __len__(self):
        raise RuntimeError("no length")


X = torch.arange(3.0)
NUMBERS = {
    "infinities": ([math.inf, -math.inf, math.nan, 0.0, -0.0, math.nan, 1e308, 5e-324], lambda x, n: x * n + 1),
    "signed zero": ([0.0, -0.0, 0, False, 0j], lambda x, n: torch.full((2,), math.copysign(1, n.real)) + x.sum()),
    "equal, of other types": ([1, True, 1.0, Int(1), 1 + 0j], lambda x, n: (x * 2, type(n).__name__)),
    "big": ([2**70, -(2**70), 2**63, 2**63 - 1, -(2**63)], lambda x, n: x + float(n)),
    "int that is equal to all": ([Int(2), Int(3), 2, Int(2)], lambda x, n: x + int.__add__(n, 0)),
    "text that is equal to all": ([Text("a"), Text("b"), "a"], lambda x, s: x + ord(str.__getitem__(s, 0))),
    "object that is equal to all": ([Equal(2), Equal(3), Equal(2)], lambda x, o: x * o.factor),
    "object that raises": ([Refusing(2), Refusing(3), Refusing(2)], lambda x, o: x * o.factor),
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_unusual_values(kind):
    values, fn = NUMBERS[kind]
    jfn = compiled(fn)
    for value in [*values, *values]:
        try:
            found = jfn(X, value)
        except Exception as error:
            with pytest.raises(type(error)):
                thunder.jit(fn)(X, value)
            continue
        expected = fn(X, value)
        for a, b in zip(*((r if isinstance(r, tuple) else (r,)) for r in (found, expected)), strict=True):
            if isinstance(b, torch.Tensor):
                torch.testing.assert_close(a, b, equal_nan=True)
                assert torch.equal(torch.signbit(a.real), torch.signbit(b.real))
            else:
                assert a == b
    for entry in entries(jfn):
        assert str(entry.key)
    table_of(jfn)
    assert str(speckey.explain(jfn, code=True))


def test_globals_that_are_equal_to_all():
    names = {"torch": torch, "FACTOR": Equal(2)}
    exec("def fn(x):\n return x * FACTOR.factor", names)
    fn = names["fn"]
    jfn = compiled(fn)
    for value in (Equal(2), Equal(3), Refusing(4), Equal(2)):
        names["FACTOR"] = value
        torch.testing.assert_close(jfn(X), fn(X))


# -- containers ----------------------------------------------------------------------------------------------


class Missing(dict):
    def __missing__(self, key):
        return 5.0


def _selfish(n):
    values = [torch.ones(n)]
    values.append(values)
    return values


def _selfish_dict(n):
    values = {"x": torch.ones(n)}
    values["me"] = values
    return values


CONTAINERS = {
    "odd keys": (
        lambda n: {None: torch.ones(n), (1, "a"): 2.0, 3.5: 1, True: 4, b"b": 5, frozenset([1]): 6},
        lambda d: d[None] * d[1, "a"] + d[True],
    ),
    "nan keys": (lambda n: {math.nan: torch.ones(n), -0.0: 3.0}, lambda d: next(iter(d.values())) * d[0.0]),
    "a key that is equal to all": (lambda n: {Int(3): torch.ones(n)}, lambda d: next(iter(d.values())) * 2),
    "a missing key": (lambda n: Missing(x=torch.ones(n)), lambda d: d["x"] * d["y"]),
    "contains itself": (_selfish, lambda v: v[1][1][0] * 2),
    "dict that contains itself": (_selfish_dict, lambda d: d["me"]["me"]["x"] * 2),
    "generator": (lambda n: (torch.full((n,), float(i)) for i in range(3)), lambda g: sum(g)),
    "iterator": (lambda n: iter([torch.ones(n), torch.ones(n)]), lambda g: next(g) + next(g)),
    "deque": (lambda n: collections.deque([torch.ones(n)]), lambda d: d[0] * 2),
    "user list": (lambda n: collections.UserList([torch.ones(n)]), lambda d: d[0] * 2),
    "default dict": (lambda n: collections.defaultdict(float, x=torch.ones(n)), lambda d: d["x"] + d["z"]),
    "deep": (lambda n: [[[[[[[[[[torch.ones(n)]]]]]]]]]], lambda v: v[0][0][0][0][0][0][0][0][0][0] + 1),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_unusual_containers(kind):
    make, fn = CONTAINERS[kind]
    jfn = compiled(fn)
    for n in (2, 3, 1, 2):
        try:
            found = jfn(make(n))
        except (Exception, RecursionError) as error:
            with pytest.raises(type(error)):
                thunder.jit(fn)(make(n))
            continue
        torch.testing.assert_close(found, fn(make(n)))


# -- programs that change ------------------------------------------------------------------------------------


def test_mutated_defaults():
    def fn(x, scale=[2.0], *, options={"shift": 1.0}):  # noqa: B006
        return x * scale[0] + options["shift"]

    jfn = compiled(fn)
    for value in (2.0, 3.0, 2.0):
        fn.__defaults__[0][0] = value
        torch.testing.assert_close(jfn(X), fn(X))
        fn.__kwdefaults__["options"]["shift"] = -value
        torch.testing.assert_close(jfn(X), fn(X))
    fn.__defaults__ = ([7.0],)
    torch.testing.assert_close(jfn(X), X * 7 - 2)


def test_functions_that_are_redefined():
    names = {"torch": torch}
    exec("def helper(x):\n return x + 1\ndef fn(x):\n return helper(x) * 2", names)
    jfn = compiled(names["fn"])
    torch.testing.assert_close(jfn(X), names["fn"](X))
    exec("def helper(x):\n return x - 1", names)
    torch.testing.assert_close(jfn(X), names["fn"](X))
    names["helper"].__code__ = (lambda x: x * 5).__code__
    torch.testing.assert_close(jfn(X), names["fn"](X))
    names["fn"].__code__ = (lambda x: x - 100).__code__
    torch.testing.assert_close(jfn(X), X - 100)


def test_a_method_that_is_exchanged():
    class Model(torch.nn.Module):
        def act(self, x):
            return x + 1

        def forward(self, x):
            return self.act(x) * 2

    model = Model()
    jfn = compiled(model)
    for change in (
        lambda: None,
        lambda: setattr(Model, "act", lambda self, x: x - 1),
        lambda: setattr(model, "act", lambda x: x * 9),
        lambda: delattr(model, "act"),
        lambda: setattr(Model, "forward", lambda self, x: x / 3),
    ):
        change()
        torch.testing.assert_close(jfn(X), model(X))


def test_a_shape_that_is_patched(monkeypatch):
    class Wrapped:
        def __init__(self, tensor):
            self.tensor = tensor

        @property
        def shape(self):
            return self.tensor.shape

    fn = lambda w: w.tensor * w.shape[0]
    jfn = compiled(fn)
    wrapped = Wrapped(torch.ones(3))
    torch.testing.assert_close(jfn(wrapped), fn(wrapped))
    monkeypatch.setattr(Wrapped, "shape", (5,))
    torch.testing.assert_close(jfn(wrapped), fn(wrapped))
    wrapped.tensor = torch.ones(4)
    torch.testing.assert_close(jfn(wrapped), fn(wrapped))


# -- nothing of the user's is executed ---------------------------------------------------------------------

EVIL = [
    "__import__('tests.test_hostile').test_hostile.BROKEN.append(1)",
    "x'] or BROKEN.append(1) or ['",
    "a\nBROKEN.append(2)\n",
    '"""\nBROKEN.append(3)\n"""',
    "fn",
    "args",
    "MISS",
    "c0",
    "p1",
    "return",
    "entry",
    "{v}",
    "\N{GREEK SMALL LETTER ALPHA}",
    "\ufb01",  # a ligature, which Python's parser takes for "fi"
    "\x00",
    "'",
    "\\",
    "",
]
BROKEN: list = []


def _all_source(jfn):
    return source_of(table_of(jfn).unit)


@pytest.mark.parametrize("evil", EVIL)
def test_names_keys_and_strings_are_not_code(evil):
    def fn(x, **options):
        total = x
        for name, value in options.items():
            total = total + (value if isinstance(value, torch.Tensor) else len(value)) * len(name)
        return total

    jfn = compiled(fn)
    for n in (2, 3):
        kwargs = {evil: torch.ones(n), "text": evil, "more": {evil: torch.ones(n)}}
        try:
            found = jfn(torch.ones(n), **{k: v for k, v in kwargs.items() if k != "more"})
        except Exception as error:  # thunder prints names into its own source
            with pytest.raises(type(error)):
                thunder.jit(fn)(torch.ones(n), **{k: v for k, v in kwargs.items() if k != "more"})
        else:
            torch.testing.assert_close(found, fn(torch.ones(n), **{evil: torch.ones(n), "text": evil}))
    inner = lambda x, d: x + d[evil] * 2 if evil in d else x
    jinner = compiled(inner)
    for n in (2, 3):
        try:
            found = jinner(torch.ones(n), {evil: torch.ones(n)})
        except Exception as error:
            with pytest.raises(type(error)):
                thunder.jit(inner)(torch.ones(n), {evil: torch.ones(n)})
        else:
            torch.testing.assert_close(found, torch.full((n,), 3.0))
    assert not BROKEN
    for text in (_all_source(jfn), _all_source(jinner)):
        assert "BROKEN" not in text
        assert str(speckey.explain(jinner)) is not None
        assert re.fullmatch(r"[\x20-\x7e\n]*", text)


@pytest.mark.parametrize("evil", [e for e in EVIL if e])
def test_attributes_of_any_name(evil):
    class Thing:
        pass

    thing = Thing()
    setattr(thing, evil, 2.0)
    fn = lambda x: x * getattr(thing, evil)
    jfn = compiled(fn)
    for value in (2.0, 3.0, 2.0):
        setattr(thing, evil, value)
        torch.testing.assert_close(jfn(X), X * value)
    assert not BROKEN
    assert all(str(entry.key) for entry in entries(jfn))


def test_a_parameter_of_an_evil_name():
    name = "x'] or BROKEN or ['"
    model = torch.nn.Module()
    model.register_parameter(name, torch.nn.Parameter(torch.ones(3)))
    model.forward = lambda x: x * getattr(model, name)
    try:
        found = compiled(model)(X)
    except Exception as error:
        with pytest.raises(type(error)):
            thunder.jit(model)(X)
    else:
        torch.testing.assert_close(found, X * 1)
    assert not BROKEN
