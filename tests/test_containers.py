"""Lists, dicts and the like that hold sizes: those of the program, and those of its caller."""

import collections
import copy
import dataclasses
import functools
import inspect
import itertools
import math
import operator
import re
import threading
import types

import pytest
import thunder
import torch
from thunder.core.proxies import Proxy

from speckey import entries
from tests.helpers import compiled, misses, same

KEPT, NAMED, ORDERED, SET, COUNTER, QUEUE = (
    [],
    {},
    collections.OrderedDict(),
    set(),
    collections.Counter(),
    collections.deque(),
)
SHAPES = [(3, 4), (5, 6), (9, 7), (10, 11)]


class Thing:
    pass


class Shared:
    n = 0
    seen = ()


class Registering(type):
    def __setattr__(cls, name, value):
        type.__setattr__(cls, name, [value])


class Registered(metaclass=Registering):
    n = 0


class Slots:
    __slots__ = ("n",)


SLOTS, THING, MODULE = Slots(), Thing(), types.ModuleType("module")


def _in_slots(n):
    slots = Slots()
    slots.n = [n, n + 1]
    return slots


@dataclasses.dataclass(frozen=True)
class Frozen:
    n: int
    sizes: list


@dataclasses.dataclass
class Record:
    n: int = 0


def _variable():
    n = 0

    def get():
        return n

    def put(value):
        nonlocal n
        n = value

    return get, put


get_variable, put_variable = _variable()
RECEIVED = []


def _receiver():
    while True:
        RECEIVED.append((yield))


RECEIVER = _receiver()
next(RECEIVER)


def _changed(shape):
    sizes = list(shape)
    sizes[0] = sizes[0] * 2
    sizes.append(2)
    del sizes[1]
    return sizes


def _updated(shape):
    sizes = {"b": shape[0]}
    sizes.update(zip("xy", shape, strict=True))
    return sizes


ONE_PROGRAM = {
    "list": lambda x: x.new_zeros(list(x.shape)),
    "changed": lambda x: x.new_zeros(_changed(x.shape)),
    "of a dict": lambda x: x.new_zeros(list({"b": x.shape[0], "t": x.shape[1]}.values())),
    "updated": lambda x: x.new_zeros(list(_updated(x.shape).values())),
    "reversed": lambda x: x.new_zeros(list(reversed(x.shape))),
    "cut": lambda x: x.new_zeros(list(x.shape)[:-1] + [2]),
    "tuple of a list": lambda x: x.new_zeros(tuple(list(x.shape)[::-1])),
    "generator": lambda x: (x.new_zeros(list(s for s in x.shape)), x.new_zeros(tuple(s for s in x.shape))),  # noqa: C400
    "map": lambda x: x.new_zeros(list(map(lambda s: s + 1, x.shape))),  # noqa: C417
    "filter": lambda x: x.new_zeros(list(filter(lambda s: s > 1, x.shape))),
    "chained": lambda x: x + sum(itertools.chain(list(x.shape), [1])),
    "by index": lambda x: x + operator.itemgetter(0, 1)(list(x.shape))[1],
    "returned": lambda x: (list(x.shape), [list(x.shape)], list(), x),  # noqa: C408
    "number of a joined tensor": lambda x: torch.cat([x, x]).numel() * x,
    "number of a padded tensor": lambda x: torch.nn.functional.pad(x, (1, 2)).numel() + x,
    "tensor": lambda x: torch.tensor(x.shape[0]) * x,
    "tensor of a float": lambda x: torch.tensor(x.shape[0] / 2) * x,
    "tensor of sizes": lambda x: (torch.tensor(x.shape), torch.tensor(list(x.shape)).prod() * x),
    "tensor of rows": lambda x: torch.tensor([[x.shape[0], 2], [3, x.shape[1]]]),
    "tensor of kinds": lambda x: (torch.tensor([x.shape[0], True]), torch.tensor([x.shape[0], 0.5])),
    "tensor of a dtype": lambda x: torch.tensor([x.shape[0], 2], dtype=torch.float64),
    "slots": lambda x: x * _in_slots(x.shape[0]).n[1],
    "frozen": lambda x: x * Frozen(x.shape[0], [x.shape[1]]).sizes[0],
    "signature": lambda x: x * len(inspect.signature(_in_slots).parameters) + x.shape[0],
    "bound": lambda x: x * inspect.signature(_in_slots).bind(x.shape[0]).arguments["n"],
    "tensor of branches": lambda x: torch.tensor([x.shape[0] > 2, False]),
}


@pytest.mark.parametrize("kind", ONE_PROGRAM)
def test_containers_of_sizes_take_one_program(kind):
    fn = ONE_PROGRAM[kind]
    jfn = compiled(fn)
    for shape in [*SHAPES, (3, 8)]:
        same(jfn, fn, torch.randn(shape))
    assert misses(jfn) == 1
    same(jfn, fn, torch.randn(1, 2))


PLAIN_NUMBERS = {
    "rounded": lambda x: (
        x * round(x.shape[0] * 0.37, 1),
        round(x.shape[0]),
        round(x.shape[1], 1),
        round(x.shape[1], -1),
    ),
    "rounded to whole": lambda x: x * round(x.shape[0] * 0.37),
    "power": lambda x: x * pow(x.shape[0], 2, 5) + pow(2, x.shape[1], 7) + pow(base=2, exp=x.shape[0], mod=5),
    "many": lambda x: torch.tensor([x.shape[0]] * 100),
    "complex": lambda x: torch.tensor([x.shape[0], 1j]),
    "size": lambda x: x.new_zeros(torch.Size([x.shape[0], 2])),
    "product": lambda x: x + len(list(itertools.product(list(x.shape), [1, 2]))),
    "text": lambda x: x + len("x".join(map(str, list(x.shape)))),
    "counter": lambda x: x + collections.Counter(list(x.shape))[3],
    "deque": lambda x: x + collections.deque(list(x.shape), maxlen=1)[0],
    "set": lambda x: x + len({*x.shape, 2}),
    "named": lambda x: (x, str(collections.namedtuple("Sizes", "a b")(*x.shape))),
    "square root": lambda x: x + math.isqrt(max(list(x.shape))),
}


@pytest.mark.parametrize("kind", PLAIN_NUMBERS)
def test_what_reads_numbers_in_containers(kind):
    fn = PLAIN_NUMBERS[kind]
    jfn = compiled(fn)
    for shape in [*SHAPES, (3, 4), (4, 4), (5, 3)]:
        same(jfn, fn, torch.randn(shape))
    assert all(entry.kind == "symbolic" for entry in entries(jfn))


@pytest.mark.parametrize(
    ("fn", "error"),
    [
        (lambda x: torch.tensor([[x.shape[0]], [1, 2]]), RuntimeError),
        (lambda x: torch.tensor([x.shape[0] / 2], dtype=torch.int64), RuntimeError),
        (lambda x: torch.tensor([x.shape[0], "a"]), ValueError),
        (lambda x: torch.tensor([float(x.shape[0])], requires_grad=True), NotImplementedError),
    ],
)
def test_what_thunder_refuses_of_tensors_of_sizes(fn, error):
    for jfn in (thunder.jit(fn), compiled(fn)):
        with pytest.raises(error):
            jfn(torch.randn(3, 4))


# -- containers of the caller ---------------------------------------------------------------------------

MADE = [
    *("{1}", "set()", "dict()", "{'z': 1}", "dict(z=1)", "{i: i for i in (1,)}", "[]", "list()", "[i for i in (1, 2)]"),
    *("collections.deque()", "collections.OrderedDict()", "collections.defaultdict(list)", "copy.copy([1])"),
    *("copy.deepcopy([1])", "[1] * 2", "[1] + [2]", "[1, 2, 3][1:]", "sorted([2, 1])", "'a b'.split()"),
    *("list(zip([1], [2]))", "list(map(int, ['1']))", "list(x.shape)", "[*x.shape]", "[1].copy()", "{1: 2}.copy()"),
    *("set([1])", "types.SimpleNamespace()", "Thing()", "Record()", "([],)", "Thing().__dict__", "list(KEPT)"),
]
KEEPING = """
def fn(x):
    made = {made}
    {keep}
    if isinstance(made, tuple):
        made[0].append(x.shape[0])
    elif isinstance(made, (list, collections.deque)):
        made.append(x.shape[0])
    elif isinstance(made, set):
        made.add(x.shape[0])
    elif isinstance(made, dict):
        made["n"] = x.shape[0]
    else:
        made.n = x.shape[0]
    return x + len(KEPT) + len(NAMED)
"""
OTHERS = {
    "changed afterwards": """
def fn(x):
    sizes = [x.shape[0], 5]
    NAMED["k"] = sizes
    sizes[1] = x.shape[1]
    return x + NAMED["k"][1]
""",
    "the same": "def fn(x):\n    sizes = [x.shape[0]]\n    KEPT.append(sizes)\n    return x + (KEPT[-1] is sizes)",
    "by name": "def fn(x):\n    NAMED.update(n=x.shape[0])\n    return x + NAMED['n']",
    "pairs": "def fn(x):\n    NAMED.update([('n', x.shape[0])])\n    return x + NAMED['n']",
    "dict": "def fn(x):\n    NAMED.update({'n': x.shape[0], 'm': 2})\n    return x + NAMED['n']",
    "generator": "def fn(x):\n    KEPT.extend(s for s in x.shape)\n    return x + KEPT[0]",
    "nested": "def fn(x):\n    KEPT.extend([[x.shape[0]], 2])\n    return x + KEPT[0][0]",
    "default": "def fn(x):\n    NAMED.setdefault('a', x.shape[0])\n    return x + NAMED['a']",
    "default list": "def fn(x):\n    NAMED.setdefault('a', []).append(x.shape[0])\n    return x + NAMED['a'][0]",
    "slice": "def fn(x):\n    KEPT[:] = x.shape\n    return x + KEPT[1]",
    "slice of lists": "def fn(x):\n    KEPT[:] = [x.shape[0], [1]]\n    return x + KEPT[0]",
    "in place": "def fn(x):\n    kept = KEPT\n    kept += [x.shape[0]]\n    return x + KEPT[0]",
    "function": "def fn(x):\n    n = x.shape[0]\n    KEPT.append(lambda: n)\n    return x + KEPT[0]()",
    "partial": "def fn(x):\n    KEPT.append(functools.partial(int, x.shape[0]))\n    return x + KEPT[0]()",
    "ordered": "def fn(x):\n    ORDERED['k'] = x.shape[0]\n    ORDERED.update(m=2)\n    return x + len(ORDERED)",
    "ordered default": "def fn(x):\n    ORDERED.setdefault('k', x.shape[0])\n    return x + ORDERED['k']",
    "ordered by size": "def fn(x):\n    ORDERED[x.shape[0]] = 1\n    return x + len(ORDERED)",
    "set in place": "def fn(x):\n    s = SET\n    s |= {x.shape[0]}\n    return x + sum(SET)",
    "set without": "def fn(x):\n    SET.symmetric_difference_update({x.shape[0], 1})\n    return x + len(SET)",
    "set of a generator": "def fn(x):\n    SET.update(s for s in x.shape)\n    return x + sum(SET)",
    "counted": "def fn(x):\n    COUNTER.update(x.shape)\n    return x + len(COUNTER)",
    "queue": "def fn(x):\n    QUEUE.extend(s for s in x.shape)\n    return x + QUEUE[0]",
    "by operator": "def fn(x):\n    operator.setitem(NAMED, 'z', x.shape[0])\n    return x + NAMED['z']",
    "key of sizes": "def fn(x):\n    NAMED[len(x), 1] = 2\n    NAMED[tuple(x.shape)] = 3\n    return x + len(NAMED)",
    "slice of sizes": "def fn(x):\n    NAMED['s'] = slice(0, x.shape[0] - 1)\n    return x[NAMED['s']]",
    "slice from map": "def fn(x):\n    KEPT[len(KEPT):] = map(abs, x.shape)\n    return x + KEPT[-1]",
    "class": "def fn(x):\n    Shared.n = x.shape[0]\n    Shared.seen = (*Shared.seen, x.shape[1])\n    return x + 1",
    "class by name": "def fn(x):\n    setattr(Shared, 'n', x.shape[0])\n    return x + 1",
    "slot": "def fn(x):\n    SLOTS.n = x.shape[0]\n    return x + 1",
    "slot with a list": "def fn(x):\n    SLOTS.n = [x.shape[0]]\n    return x + 1",
    "slot with slots": "def fn(x):\n    SLOTS.n = Slots()\n    SLOTS.n.n = x.shape[0]\n    return x + 1",
    "slot by object": "def fn(x):\n    object.__setattr__(SLOTS, 'n', x.shape[0])\n    return x + 1",
    "slot by object, a list": "def fn(x):\n    object.__setattr__(SLOTS, 'n', [x.shape[0]])\n    return x + 1",
    "slot by method": "def fn(x):\n    SLOTS.__setattr__('n', [x.shape[0]])\n    return x + 1",
    "slot by its descriptor": "def fn(x):\n    Slots.n.__set__(SLOTS, x.shape[0])\n    return x + 1",
    "initialized again": "def fn(x):\n    QUEUE.__init__([x.shape[0]])\n    return x + QUEUE[0]",
    "dict initialized again": "def fn(x):\n    ORDERED.__init__(n=x.shape[0])\n    return x + len(ORDERED)",
    "class by type": "def fn(x):\n    type.__setattr__(Shared, 'n', x.shape[0])\n    return x + 1",
    "class by type, a list": "def fn(x):\n    type.__setattr__(Shared, 'n', [x.shape[0]])\n    return x + 1",
    "module": "def fn(x):\n    MODULE.n = x.shape[0]\n    return x + 1",
    "module with a list": "def fn(x):\n    MODULE.n = [x.shape[0]]\n    return x + 1",
    "module by method": "def fn(x):\n    MODULE.__setattr__('n', x.shape[0])\n    return x + 1",
    "by method caller": "def fn(x):\n    operator.methodcaller('append', x.shape[0])(KEPT)\n    return x + 1",
    "by method caller, a list": "def fn(x):\n    operator.methodcaller('append', [len(x)])(KEPT)\n    return x + 1",
    "mapped caller": "def fn(x):\n    list(map(operator.methodcaller('append', len(x)), [KEPT]))\n    return x + 1",
    "class of a metaclass": "def fn(x):\n    Registered.n = x.shape[0]\n    return x + 1",
    "variable": "def fn(x):\n    put_variable(x.shape[0])\n    return x + 1",
    "variable with a list": "def fn(x):\n    put_variable([x.shape[0]])\n    return x + 1",
    "sent": "def fn(x):\n    RECEIVER.send(x.shape[0])\n    return x + 1",
    "dict of an object": "def fn(x):\n    vars(THING)['n'] = x.shape[0]\n    return x + 1",
    "object": "def fn(x):\n    o = Thing()\n    o.n = x.shape[0]\n    KEPT.append(o)\n    return x + KEPT[0].n",
}
KEEPERS = {
    **{made: KEEPING.format(made=made, keep="KEPT.append(made)") for made in MADE},
    **{f"{made}, by key": KEEPING.format(made=made, keep="NAMED['k'] = made") for made in ("[]", "list()", "Thing()")},
    **OTHERS,
}


def _holds_proxy(value, depth=0):
    if isinstance(value, Proxy) or depth > 4:
        return isinstance(value, Proxy)
    if isinstance(value, dict):
        value = [*value, *value.values()]
    elif isinstance(value, slice):
        value = [value.start, value.stop, value.step]
    elif isinstance(value, types.FunctionType):
        value = [cell.cell_contents for cell in value.__closure__ or ()]
    elif isinstance(value, functools.partial):
        value = value.args
    elif isinstance(value, Slots):
        value = [value.n]
    elif isinstance(value, (Thing, Record, types.SimpleNamespace)):
        value = list(vars(value).values())
    return isinstance(value, (list, tuple, set, collections.deque)) and any(_holds_proxy(v, depth + 1) for v in value)


def _result_and_state(fn, x):
    for container in (KEPT, NAMED, ORDERED, SET, COUNTER, QUEUE, RECEIVED, vars(THING)):
        container.clear()
    Shared.n, Shared.seen, SLOTS.n, MODULE.n = 0, (), 0, 0
    Registered.n = 0
    put_variable(0)
    result = fn(x)
    numbers = [Shared.n, Shared.seen, SLOTS.n, MODULE.n, Registered.n, get_variable()]
    outside = [ORDERED, SET, COUNTER, QUEUE, RECEIVED, THING, *numbers]
    assert not _holds_proxy([KEPT, NAMED, *outside])
    state = [getattr(value, "__dict__", value) for value in (*KEPT, *NAMED.items(), *outside)]
    return result, re.sub(r" at 0x\w+", "", repr(state))


@pytest.mark.parametrize("kind", KEEPERS)
def test_what_is_kept_by_the_caller(kind):
    """The program's own container goes there, not a copy, and no proxy of the tracing with it."""
    namespace = {**globals(), "copy": copy}
    exec(KEEPERS[kind], namespace)
    fn = namespace["fn"]
    jfn = compiled(fn)
    for shape in [(3, 4), (5, 6), (3, 4), (5, 6), (8, 2)]:
        x, before = torch.randn(shape), misses(jfn)
        found, expected = _result_and_state(jfn, x), _result_and_state(fn, x)
        torch.testing.assert_close(found[0], expected[0])
        if misses(jfn) > before:  # side effects are those of the tracing
            assert found[1] == expected[1]


DTYPES = {
    "explicit": lambda x: torch.tensor([x.shape[0], 1], dtype=torch.float64) * x[0, :2],
    "half": lambda x: torch.tensor([x.shape[0], 7], dtype=torch.float16) * x[0, :2].bfloat16(),
    "nested": lambda x: torch.tensor([[x.shape[0]], [7]], dtype=torch.float64) * x[:2, :1],
    "scalar": lambda x: torch.tensor(x.shape[0], dtype=torch.float64) * x,
    "default": lambda x: torch.tensor([x.shape[0] / 2, 1.0]) * x[0, :2],
    "default of bools": lambda x: torch.tensor([x.shape[0] > 2, 2.5]),
    "arange": lambda x: torch.arange(x.shape[0] / 2),
    "arange from": lambda x: torch.arange(0.5, x.shape[0] + 0.5),
    "arange step": lambda x: torch.arange(0, x.shape[0], x.shape[1] / 2),
    "arange branch": lambda x: x if torch.arange(x.shape[0] / 2).is_floating_point() else x * 2,
    "arange of ints": lambda x: torch.arange(x.shape[0]) / 2 + torch.arange(1, x.shape[0] + 1, dtype=torch.float64),
}


@pytest.mark.parametrize("default", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", DTYPES)
def test_dtypes_of_tensors_made_from_sizes(kind, default):
    fn = DTYPES[kind]
    torch.set_default_dtype(default)
    try:
        for grad in (False, True):
            jfn = compiled(fn)
            for shape in SHAPES:
                x = torch.ones(shape, dtype=torch.float32, requires_grad=grad)
                found, fresh = jfn(x), thunder.jit(fn)(x)
                assert found.dtype == fresh.dtype
                torch.testing.assert_close(found, fresh)
    finally:
        torch.set_default_dtype(torch.float32)


def test_classes_and_functions_of_a_program_without_a_name():
    source = "class Cls:\n    t = ()\ndef scale(x):\n    return x * len(Cls.t)\ndef fn(x):\n    return scale(x)"
    namespace = {}
    exec(source, namespace)
    jfn = compiled(namespace["fn"])
    for count, n in [(1, 3), (1, 5), (2, 3), (3, 3), (1, 3)]:
        namespace["Cls"].t = (0,) * count
        torch.testing.assert_close(jfn(torch.ones(n)), torch.ones(n) * count)
    namespace["scale"].__code__ = (lambda x: x - 1).__code__
    torch.testing.assert_close(jfn(torch.ones(3)), torch.zeros(3))


def test_locks_of_the_caller_are_released_when_free_sizes_fail():
    lock = threading.Lock()

    def fn(x):
        with lock:
            KEPT.append([x.shape[0]])
        return x + KEPT[-1][0]

    jfn = compiled(fn)
    for n in (3, 5, 3):
        KEPT.clear()
        found = jfn(torch.zeros(n))
        assert not lock.locked()
        torch.testing.assert_close(found, torch.full((n,), float(n)))


def test_a_function_that_changes_a_container_of_sizes():
    """It would change a copy; thunder refuses those functions itself."""

    def fn(x):
        sizes = [x.shape[0]]
        operator.iadd(sizes, [x.shape[1]])
        return x + len(sizes)

    for jfn in (thunder.jit(fn), compiled(fn)):
        with pytest.raises(thunder.core.interpreter.InterpreterError):
            jfn(torch.randn(3, 4))
