"""The generated look-up finds what the tree finds, also while the tree changes."""

import re
import threading

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from speckey import symbols as S
from speckey.codegen import Switch, Unit, source_of
from speckey.recorder import Fact
from speckey.signature import describe
from speckey.table import MISS, Tree
from tests.test_table import ENTRIES, A, B, Made, find


def _unit(tree):
    return Unit(tree.root, None, threading.RLock())


def _generated(unit, a, b):
    found = unit.go((torch.empty(a, b, device="meta"),), {})
    return None if found is MISS else found


@settings(max_examples=200, derandomize=True, deadline=None)
@given(ENTRIES, st.sets(st.integers(0, 11)), st.sets(st.integers(0, 11)))
def test_generated_code_and_tree_agree(entries, down, removed):
    tree, entries = Tree(), [Made(e.facts, accepts=i not in down) for i, e in enumerate(entries)]
    unit = _unit(tree)

    def compare():
        for a in range(6):
            for b in range(6):
                assert _generated(unit, a, b) is find(tree, a, b, lambda e: e if e.accepts else None)

    for i, entry in enumerate(entries):
        tree.insert(entry)
        if i % 3 == 0:
            compare()  # what was generated so far must notice what comes next
    compare()
    for i, entry in enumerate(entries):
        if i in removed:
            tree.remove(entry)
    compare()


def test_many_entries_and_deep_chains():
    tree, deep = Tree(), Tree()
    by_size = [Made((Fact(A, n),)) for n in range(600)]
    chain = [Made((*(Fact(S.eq(A, k), False) for k in range(n)), Fact(S.eq(A, n), True))) for n in range(150)]
    nested = [Made((*(Fact(S.ge(A, k), True) for k in range(1, n)), Fact(S.ge(A, n), False))) for n in range(1, 60)]
    stairs = Tree()
    for t, made in ((tree, by_size), (deep, chain), (stairs, nested)):
        unit = _unit(t)
        for i, e in enumerate(made):
            t.insert(e)
            if i % 10 == 0:
                assert _generated(unit, i, 0) is find(t, i, 0)
        for n in (0, 1, 7, 58, 77, 149, 599):
            assert _generated(unit, n, 0) is find(t, n, 0)
    assert find(stairs, 57, 0) is nested[57]


def test_a_switch_grows_without_new_code():
    tree = Tree()
    unit = _unit(tree)
    for n in range(8):
        tree.insert(Made((Fact(A, n),)))
    _generated(unit, 3, 0)
    assert isinstance(tree.root.switch, Switch)
    go = unit.go
    new = Made((Fact(A, 100),))
    tree.insert(new)
    assert _generated(unit, 100, 0) is new
    assert unit.go is go
    tree.remove(new)
    assert _generated(unit, 100, 0) is None


def test_nothing_but_names_numbers_and_operators_is_printed():
    tree = Tree()
    unit = _unit(tree)
    for n in range(5):
        tree.insert(Made((Fact(S.eq(S.floordiv(A, B), 3), True), Fact(S.mod(A, 2), 1), Fact(A, n))))
    evil = 'x"); import os; os.abort() #'
    args = ({evil: torch.ones(2), "a": [evil, 1.5]}, evil)
    named_by_user: Tree = Tree()
    other = _unit(named_by_user)
    named_by_user.insert(_WithAnswers(describe(args, {evil: 1}).answers))
    assert other.go(args, {evil: 1}) is not MISS
    for n in range(5):
        unit.go((torch.ones(n, 1),), {})
    source = (source_of(unit) + source_of(other)).replace("# <speckey table ", "# ")
    assert "import" not in source
    assert '"' not in source
    words = set(re.findall(r"[A-Za-z_]\w*", source))
    fixed = ["def", "if", "for", "in", "is", "not", "None", "return", "try", "except", "else", "elif", "True", "False"]
    named = ["args", "kwargs", "find", "MISS", "u", "r", "e", "v", "go", "get", "run", "ArithmeticError", "or", "and"]
    about = ["grad_mode", "inference_mode", "default_dtype", "default_device", "default_device_may_differ", "keys"]
    about += ["autocast", "autocast_is_on", "type", "len", "bits", "layout", "strided", "__dict__", "dtype", "device"]
    about += ["requires_grad", "dim", "check", "learn", "shape", "reversed"]
    rest = words - set(fixed) - set(named) - set(about)
    assert all(re.fullmatch(r"s\d+_\d+|[cp]\d+", w) for w in rest), rest


class _WithAnswers:
    shapes_only = None

    def __init__(self, answers):
        self.steps = list(answers)

    def run(self, args, kwargs):
        return self


# -- signatures ------------------------------------------------------------------------------------

_TENSORS = [
    torch.ones(2, 3),
    torch.ones(4, 5),
    torch.ones(2),
    torch.ones(2, dtype=torch.int64),
    torch.ones(2, requires_grad=True),
    torch.nn.Parameter(torch.ones(2)),
    torch.nn.Parameter(torch.ones(3)),
    torch.ones(2, 2).to_sparse(),
    torch.ones(2, device="meta"),
]
_LEAVES = st.sampled_from(
    [*_TENSORS, None, True, False, 0, 1, 2, 0.0, -0.0, 1.0, float("nan"), 1j, "a", b"a", ..., slice(1), torch.float32]
)
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from(["a", "b", 1, True, None]), inner, max_size=3),
    ),
    max_leaves=6,
)
_CALLS = st.lists(
    st.tuples(
        st.lists(_VALUES, max_size=3).map(tuple), st.dictionaries(st.sampled_from(["k", "l"]), _VALUES, max_size=1)
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=150, derandomize=True, deadline=None)
@given(_CALLS, st.booleans())
def test_calls_meet_in_the_tree_exactly_where_their_signatures_are_equal(calls, shared):
    if shared and calls[0][0]:
        calls.append(((calls[0][0][0],) * 2, {}))  # one container in two places
    tree: Tree = Tree()
    unit = _unit(tree)
    known: dict[tuple, _WithAnswers] = {}
    for _ in range(2):
        for args, kwargs in calls:
            description = describe(args, kwargs)
            found = unit.go(args, kwargs)
            assert found is known.get(description.signature, MISS)
            if found is MISS:
                known[description.signature] = _WithAnswers(description.answers)
                tree.insert(known[description.signature])


@settings(max_examples=30, derandomize=True, deadline=None)
@given(_CALLS)
def test_questions_asked_one_by_one_are_answered_the_same(calls):
    for args, kwargs in calls:

        def fetch(path, args=args, kwargs=kwargs):
            if path[0] in ("args", "kwargs"):
                return args if path[0] == "args" else kwargs
            return fetch(path[1])[path[2]]

        assert all(question.ask(fetch) == answer for question, answer in describe(args, kwargs).answers)
