"""The decision tree with made-up predicates: whatever is found fits, whatever fits is found."""

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from speckey import symbols as S
from speckey.recorder import Fact
from speckey.table import MISS, Tree

A, B = S.size(0, 0), S.size(0, 1)
TESTS = [
    A,
    B,
    S.eq(A, 1),
    S.eq(B, 1),
    S.eq(A, B),
    S.ge(A, 3),
    S.mod(A, 2),
    S.floordiv(B, A),  # raises for A == 0
]


@attrs.frozen(eq=False)
class Made:
    """As much of an entry as the table asks for."""

    facts: tuple
    shapes_only: tuple | None = None
    tensor_paths: tuple = (("item", ("args",), 0),)
    ranks: tuple = (2,)
    accepts: object = True  # what its function returns

    @property
    def steps(self):
        return [(f.test, f.outcome) for f in self.facts]

    def run(self, args, kwargs):
        return self if self.accepts else MISS


def find(tree, a, b, accept=lambda e: e):
    return tree.find(lambda test: S.evaluate(test, _sizes(a, b)), ((a, b),), accept)


def _sizes(a, b):
    return {"s0_0": a, "s0_1": b}


def _holds(fact, sizes):
    try:
        return S.evaluate(fact.test, sizes) == fact.outcome
    except ZeroDivisionError:
        return False


def _entry(order, traced):
    facts = []
    for i in order:
        try:
            facts.append(Fact(TESTS[i], S.evaluate(TESTS[i], _sizes(*traced))))
        except ZeroDivisionError:
            continue
    return Made(tuple(facts))


ENTRIES = st.lists(
    st.builds(
        _entry,
        st.lists(st.integers(0, len(TESTS) - 1), unique=True, max_size=5),
        st.tuples(st.integers(0, 5), st.integers(0, 5)),
    ),
    max_size=12,
)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(ENTRIES, st.sets(st.integers(0, 11)))
def test_finds_an_entry_exactly_where_one_fits(entries, removed):
    tree = Tree()
    for entry in entries:
        tree.insert(entry)
    left = [e for i, e in enumerate(entries) if i not in removed]
    for i, entry in enumerate(entries):
        if i in removed:
            assert tree.remove(entry)
            assert not tree.remove(entry)
    assert set(map(id, tree)) == set(map(id, left))
    for a in range(6):
        for b in range(6):
            fitting = [e for e in left if all(_holds(f, _sizes(a, b)) for f in e.facts)]
            found = find(tree, a, b)
            assert (found in fitting) if fitting else found is None
            # One that is turned down does not hide another that fits.
            seen = []
            find(tree, a, b, seen.append)
            assert set(map(id, seen)) == set(map(id, fitting))


def test_entries_told_apart_by_a_size_are_one_step_away():
    tree = Tree()
    for n in range(100):
        tree.insert(Made((Fact(A, n),)))
    assert tree.root.test == A
    assert len(tree.root.children) == 100
    assert tree.root.rest is None


def test_exact_entries_come_first_and_by_their_shapes():
    tree = Tree()
    exact, other, symbolic = Made((), ((2, 3),)), Made((), ((4, 5),)), Made((Fact(S.eq(A, 7), False),))
    for e in (exact, symbolic, other):
        tree.insert(e)
    assert [find(tree, *s) for s in ((2, 3), (4, 5), (6, 6), (7, 1))] == [exact, other, symbolic, None]
    for e in (exact, other, symbolic):
        assert tree.remove(e)
    assert tree.root.is_empty()


def test_an_emptied_tree_has_no_nodes_left():
    tree = Tree()
    entries = [Made((Fact(S.eq(A, 1), True),)), Made((Fact(S.eq(A, 1), False), Fact(B, 2))), Made((Fact(B, 7),))]
    for e in entries:
        tree.insert(e)
    for e in entries:
        assert tree.remove(e)
    assert tree.root.is_empty()
    assert tree.root.test is None
