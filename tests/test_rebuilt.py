"""Arguments made once more with other tensors, and what checking says of programs that raise."""

import collections

import pytest
import torch

from speckey import verify
from speckey.containers import Copies, rebuilt

Pair = collections.namedtuple("Pair", "a b")


class Named(Pair):
    """A named tuple with attributes of its own."""


def test_tuples_of_all_kinds():
    x = torch.ones(2)
    named = Named(x, 1)
    named.note = "kept"
    size = torch.Size([2, 3])
    new, new_size, new_pair = rebuilt((named, size, Pair(x, [x])), lambda t: t + 1)
    assert type(new) is Named
    assert (new.note, new.b) == ("kept", 1)
    torch.testing.assert_close(new.a, x + 1)
    assert new_size is size
    assert type(new_pair) is Pair
    torch.testing.assert_close(new_pair.b[0], x + 1)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(2, 3).to_sparse(),
        torch.ones(2, dtype=torch.complex64).conj(),
        (torch.ones(2, dtype=torch.complex64) * 1j).imag,
        torch.nn.Parameter(torch.ones(2)),
        torch.ones(2, requires_grad=True) * 2,
    ],
    ids=["sparse", "conjugate", "imaginary", "parameter", "not a leaf"],
)
def test_copies_share_nothing(tensor):
    before = tensor.detach().clone()
    new = rebuilt([tensor], Copies())[0]
    assert type(new) is type(tensor)
    assert (new.layout, new.dtype, new.requires_grad) == (tensor.layout, tensor.dtype, tensor.requires_grad)
    torch.testing.assert_close(new.detach(), before)
    with torch.no_grad():
        new.mul_(2)
    torch.testing.assert_close(tensor.detach(), before)


def test_a_gradient_is_copied():
    x = torch.ones(2, requires_grad=True)
    x.sum().backward()
    new = rebuilt(x, Copies())
    torch.testing.assert_close(new.grad, x.grad)
    new.grad.zero_()
    assert x.grad.tolist() == [1, 1]


def test_errors_are_compared():
    checking = object.__new__(verify.Checking)
    right, wrong = verify._Outcome(result=1), verify._Outcome(error=ValueError("no"))
    assert checking._difference(wrong, wrong) == ""
    assert checking._difference(wrong, right) == "it raises ValueError: no"
    assert checking._difference(right, wrong) == "compiled afresh, the call raises ValueError: no"
