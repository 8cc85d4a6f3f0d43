"""The generated look-up finds what the tree finds."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from speckey import symbols as S
from speckey.codegen import compile_tree
from speckey.recorder import Fact
from speckey.table import Tree
from tests.test_table import ENTRIES, A, B, Made


def _both(tree, a, b, turned_down=()):
    find, _ = compile_tree(tree)
    accept = lambda e: None if e in turned_down else e
    return find([(a, b)], accept), tree.find({"s0_0": a, "s0_1": b}, accept)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(ENTRIES, st.sets(st.integers(0, 11)))
def test_generated_code_and_tree_agree(entries, down):
    tree = Tree()
    for entry in entries:
        tree.insert(entry)
    turned_down = [e for i, e in enumerate(entries) if i in down]
    for a in range(6):
        for b in range(6):
            found, expected = _both(tree, a, b, turned_down)
            assert found is expected


def test_many_entries_and_deep_chains():
    tree, deep = Tree(), Tree()
    by_size = [Made((Fact(A, n),)) for n in range(600)]
    chain = [Made((*(Fact(S.eq(A, k), False) for k in range(n)), Fact(S.eq(A, n), True))) for n in range(150)]
    for e in by_size:
        tree.insert(e)
    for e in chain:
        deep.insert(e)
    for n in (0, 1, 77, 149, 599):
        assert _both(tree, n, 0) == (by_size[n],) * 2
        expected = chain[n] if n < len(chain) else None
        assert _both(deep, n, 0) == (expected,) * 2


def test_nothing_but_names_numbers_and_operators_is_printed():
    tree = Tree()
    tree.insert(Made((Fact(S.eq(S.floordiv(A, B), 3), True), Fact(S.mod(A, 2), 1))))
    _, source = compile_tree(tree)
    words = set(re.findall(r"[A-Za-z_]\w*", source))
    fixed = ["def", "if", "for", "in", "is", "not", "None", "return", "try", "except", "else", "elif", "True", "False"]
    named = ["sizes", "accept", "entry", "found", "go", "get", "v", "ArithmeticError", "math"]
    rest = words - set(fixed) - set(named)
    assert all(w[0] in "sbf" and w[1:].replace("_", "").isdigit() for w in rest), rest
