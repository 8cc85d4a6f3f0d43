"""Calling a compiled callable and eager side by side."""

import copy

import thunder
import torch
from torch.utils._pytree import tree_leaves, tree_map

from speckey import SpecKeyCache


def compiled(fn):
    return thunder.jit(fn, cache=SpecKeyCache())


def copied(values):
    return tree_map(
        lambda v: v.detach().clone().requires_grad_(v.requires_grad) if isinstance(v, torch.Tensor) else v, values
    )


def same(jfn, fn, *args, **kwargs):
    """Assert that both give the same, of the same types, and leave the same in their arguments."""
    copies, kwcopies = copied(args), copied(kwargs)
    result, expected = jfn(*args, **kwargs), fn(*copies, **kwcopies)
    assert_same(result, expected)
    for a, b in zip(tree_leaves((args, kwargs)), tree_leaves((copies, kwcopies)), strict=True):
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(a, b, msg=lambda m: f"argument after the call: {m}")
    return result


def assert_same(result, expected):
    ours, theirs = tree_leaves(result), tree_leaves(expected)
    assert len(ours) == len(theirs), (result, expected)
    for a, b in zip(ours, theirs, strict=True):
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b)
        else:
            assert type(a) is type(b), (a, b)
            assert a == b or (a != a and b != b), (a, b)


def misses(jfn):
    return thunder.cache_misses(jfn)


def twin(module):
    """An eager copy and the compiled module."""
    return copy.deepcopy(module), compiled(module)
