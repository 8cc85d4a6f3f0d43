"""Transforms and executors that people use with thunder, over changing shapes."""

import copy
import os
import socket
import warnings

import pytest
import thunder
import torch
import torch.distributed
from torch.utils.checkpoint import checkpoint

from speckey import SpecKeyCache, entries
from tests.helpers import assert_same, misses

SIZES = (2, 5, 1, 7, 3)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.second = torch.nn.Linear(8, 2)
        self.register_buffer("scale", torch.tensor([1.0, 2.0]))

    def forward(self, x):
        y = self.second(torch.nn.functional.gelu(self.first(x)))
        return y * self.scale if x.shape[0] > 4 else y - x.shape[0]


def _trained(jfn, eager, sizes=SIZES, parameters=None, **tolerance):
    """Forward and gradients over some sizes."""
    for n in sizes:
        x = torch.randn(n, 4, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        found, expected = jfn(x), eager(y)
        torch.testing.assert_close(found, expected, **tolerance)
        ours = torch.autograd.grad(found.sum(), [x, *(parameters or jfn.parameters())])
        theirs = torch.autograd.grad(expected.sum(), [y, *eager.parameters()])
        torch.testing.assert_close(ours, theirs, **tolerance)


# -- autocast ------------------------------------------------------------------------------------------


def test_autocast_around_a_module():
    dtype = torch.bfloat16
    eager = Net()
    jfn = thunder.jit(eager, cache=SpecKeyCache())
    for n in (2, 5, 3, 7):
        x = torch.randn(n, 4)
        with torch.autocast("cpu", dtype):
            found, expected = jfn(x), eager(x)
        torch.testing.assert_close(found, expected, rtol=5e-2, atol=5e-2)
        torch.testing.assert_close(jfn(x), eager(x))
    assert misses(jfn) == 4


def test_autocast_inside_a_program():
    def fn(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            y = x @ w
        return y, x @ w

    jfn = thunder.jit(fn, cache=SpecKeyCache())
    for n in SIZES:
        x, w = torch.randn(n, 4), torch.randn(4, 2)
        found, expected = jfn(x, w), fn(x, w)
        assert [t.dtype for t in found] == [t.dtype for t in expected]
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


# -- transforms ----------------------------------------------------------------------------------------


def test_constant_folding():
    from thunder.transforms.constant_folding import ConstantFolding

    def fn(x):
        table = torch.tensor([2.0, 3.0]) * 4 + 1
        return x * table.sum() + x.shape[0]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        jfn = thunder.jit(fn, cache=SpecKeyCache(), transforms=[ConstantFolding()])
        for n in SIZES:
            x = torch.randn(n, 4)
            torch.testing.assert_close(jfn(x), fn(x))
    assert misses(jfn) <= 2
    names = [op.sym.name for op in thunder.last_traces(jfn)[-1].bound_symbols]
    assert "sum" not in names, names


def test_materialization_from_meta():
    from thunder.transforms import MaterializationTransform

    eager = Net()
    with torch.device("meta"):
        meta = Net()
    for p in meta.parameters():
        p._thunder_device = torch.device("cpu")
    meta.scale._thunder_device = torch.device("cpu")
    init = MaterializationTransform.init_from_original_state_dict(eager.state_dict())
    jfn = thunder.jit(meta, cache=SpecKeyCache(), transforms=[MaterializationTransform("cpu", init=init)])
    for n in SIZES:
        x = torch.randn(n, 4)
        torch.testing.assert_close(jfn(x), eager(x))
    assert misses(jfn) <= 3


def test_a_transform_added_later_keeps_the_option():
    from thunder.core.transforms import noop

    eager = Net()
    jfn = noop(thunder.jit(eager, cache=SpecKeyCache()))
    _trained(jfn, eager)
    assert entries(jfn)
    plain = noop(thunder.jit(eager))
    with pytest.raises(TypeError):
        entries(plain)
    # and one that is made while nothing is transformed does not get it
    assert not hasattr(thunder.jit(lambda x: x), "_speckey_table")


def test_thunders_grad_transform():
    from thunder.core.transforms import grad

    fn = lambda x: (x * x.shape[0]).sin()
    jfn = grad(thunder.jit(fn, cache=SpecKeyCache()))
    plain = grad(thunder.jit(fn))
    for n in SIZES:
        x = torch.randn(n, 4, requires_grad=True)
        assert_same(jfn(x), plain(x))
    jfn(torch.randn(SIZES[0], 4, requires_grad=True))
    assert misses(jfn) == len(SIZES)  # thunder's transform does not define its names in free sizes: exact


def test_quantization_needs_a_gpu():
    pytest.importorskip("bitsandbytes")
    if not torch.cuda.is_available():
        pytest.skip("thunder's BitsAndBytesLinearQuant4bit moves weights to the GPU")
    from thunder.transforms.quantization import BitsAndBytesLinearQuant4bit, get_bitsandbytes_executor

    with torch.device("cuda"):
        eager = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()).requires_grad_(False)
    options = {"transforms": [BitsAndBytesLinearQuant4bit()], "executors": (get_bitsandbytes_executor(),)}
    jfn, plain = thunder.jit(eager, cache=SpecKeyCache(), **options), thunder.jit(eager, **options)
    for n in SIZES:
        x = torch.randn(n, 64, device="cuda")
        torch.testing.assert_close(jfn(x), plain(x))
    assert misses(jfn) <= 2


class ScaledWeights(thunder.core.transform_common.Transform):
    """Stores weights in another form and computes them back: what quantization does, on any device."""

    def transform_module(self, model):
        self._names = [name for name, _ in model.named_parameters()]
        for name in self._names:
            model._overrides_parameters[name] = torch.nn.Parameter(model._overrides_parameters[name].detach() * 2)

    def transform_traces_pre_prologue(self, prologue, computation, epilogue, **kwargs):
        from thunder.core import prims
        from thunder.core.trace import from_trace, tracectx

        names = {op.output.name for op in prologue.bound_symbols if op.sym.id is prims.PrimIDs.UNPACK_PARAMETER}
        weights = [p for p in computation.args if p.name in names]
        new = from_trace(computation)
        swap = {}
        with tracectx(new):
            body = list(computation.bound_symbols)
            new.bound_symbols = [op for op in body if op.sym.id is prims.PrimIDs.UNPACK_TRIVIAL]
            for weight in weights:
                swap[thunder.core.proxies.variableify(weight)] = thunder.torch.mul(weight, 0.5)
        for op in body:
            if op.sym.id is prims.PrimIDs.RETURN:
                new.bound_symbols.append(op)
            elif op.sym.id is not prims.PrimIDs.UNPACK_TRIVIAL:
                new.bound_symbols.append(op.from_bsym_swap_proxies(swap))
        return prologue, new, epilogue


def test_a_transform_that_exchanges_weights():
    eager = Net()
    jfn = thunder.jit(copy.deepcopy(eager), cache=SpecKeyCache(), transforms=[ScaledWeights()])
    for n in SIZES:
        x = torch.randn(n, 4)
        torch.testing.assert_close(jfn(x), eager(x))
    assert misses(jfn) <= 3


def test_a_transform_that_takes_notes_forgets_those_of_an_attempt_that_failed():
    class Notes(thunder.core.transform_common.Transform):
        def __init__(self):
            self.traces = 0

        def transform_trace_post_optimization(self, trace, **kwargs):
            assert self.traces == 0, "a note of another trace"
            self.traces += 1
            if any(isinstance(p, thunder.core.proxies.NumberProxy) for op in trace.bound_symbols for p in op.flat_args):
                raise NotImplementedError("numbers")
            self.traces = 0
            return trace

    fn = lambda x: x.reshape(x.shape[0] * 2, -1) + x.shape[0]
    jfn = thunder.jit(fn, cache=SpecKeyCache(), transforms=[Notes()])
    for n in (2, 3, 2):
        x = torch.randn(n, 4)
        torch.testing.assert_close(jfn(x), fn(x))
    assert all("numbers" in e.reason for e in entries(jfn))
    assert misses(jfn) == 2


# -- checkpointing ---------------------------------------------------------------------------------------


class Checkpointed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(lambda y, block=block: torch.tanh(block(y)) * y.shape[0], x, use_reentrant=False)
        return x


def test_activation_checkpointing():
    eager = Checkpointed()
    jfn = thunder.jit(eager, cache=SpecKeyCache())
    _trained(jfn, eager)
    assert misses(jfn) <= 3  # one name twice in thunder's second trace of a block, until a size has varied


# -- CUDA graphs, by what they ask for -------------------------------------------------------------------


def _transform_with_fake_graphs():
    """CUDAGraphTransform whose graphs are recorded on the CPU: fixed buffers, sizes and addresses, and replay."""
    from thunder.transforms.cudagraph import CUDAGraphTransform

    transform = CUDAGraphTransform()
    runner = transform.cuda_graph_runner

    class Graph:
        def __init__(self, fn, inputs):
            self._fn, self._inputs = fn, inputs
            self.outputs = fn(*inputs)

        def replay(self):
            for kept, new in zip(self.outputs, self._fn(*self._inputs), strict=True):
                if isinstance(kept, torch.Tensor):
                    kept.data.copy_(new)  # as on a GPU, unnoticed by autograd
                else:
                    assert kept == new, "a graph cannot change a number"

    def build(fn, args, static):
        inputs = tuple(a if s else runner.get_static_buffer(a) for a, s in zip(args, static, strict=True))
        graph = Graph(fn, inputs)
        return graph, inputs, graph.outputs

    runner.build_cuda_graph = build
    return transform


@pytest.mark.parametrize("grad", [False, True])
def test_graphs_are_keyed_by_their_own_shapes(grad):
    eager = Net().requires_grad_(grad)
    transform = _transform_with_fake_graphs()
    jfn = thunder.jit(copy.deepcopy(eager), cache=SpecKeyCache(), transforms=[transform])
    for n in (2, 5, 3, 7, 2, 5, 3):
        x = torch.randn(n, 4)
        found, expected = jfn(x), eager(x)
        torch.testing.assert_close(found, expected)
        if grad:
            assert_same(
                torch.autograd.grad(found.sum(), [*jfn.parameters()]),
                torch.autograd.grad(expected.sum(), [*eager.parameters()]),
            )
    # With gradients thunder's transform looks for the first saved number in a certain line: exact.
    assert misses(jfn) == (4 if grad else 2)
    assert {e.kind for e in entries(jfn)} == {"exact" if grad else "symbolic"}
    shapes = {key[2].sizes for key in transform.cuda_graph_runner.cuda_graph_cache}
    assert len(shapes) >= 4


# -- inductor --------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_torch_compile_executor():
    eager = Net()
    jfn = thunder.jit(eager, cache=SpecKeyCache(), executors=["torchcompile"])
    _trained(jfn, eager, (2, 5, 3, 2))
    assert misses(jfn) == 3  # a fusion of thunder's cannot take in numbers: exact
    assert "TorchCompile" in str(thunder.last_traces(jfn)[-1])


# -- data parallel ---------------------------------------------------------------------------------------


def _free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _in_two_processes(work):
    torch.multiprocessing.spawn(_process, args=(work, _free_port()), nprocs=2)


def _process(rank, work, port):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), LOCAL_RANK=str(rank))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    try:
        work(rank)
    finally:
        torch.distributed.destroy_process_group()


def _batch(n, rank):
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(10 * n + rank))


def _ddp(rank):
    torch.manual_seed(0)
    eager = Net()
    jfn = thunder.distributed.ddp(thunder.jit(copy.deepcopy(eager), cache=SpecKeyCache()))
    for n in (2, 5, 3, 7):
        jfn.zero_grad()
        jfn(_batch(n, rank)).sum().backward()
        eager.zero_grad()
        (sum(eager(_batch(n, r)).sum() for r in range(2)) / 2).backward()
        for (name, p), q in zip(jfn.named_parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, msg=lambda m, name=name, n=n: f"{name}, {n}: {m}")
    compiled = len(entries(jfn))  # thunder's split of a data parallel trace fails with free sizes: exact
    assert compiled <= 4

    # Without synchronization every process has the gradients of its own batch, until the context is left.
    jfn.zero_grad()
    eager.zero_grad()
    with jfn.no_sync():
        jfn(_batch(3, rank)).sum().backward()
        own = [p.grad.clone() for p in jfn.parameters()]
    eager(_batch(3, rank)).sum().backward()
    torch.testing.assert_close(own, [q.grad for q in eager.parameters()])
    assert len(entries(jfn)) == compiled + 1


def _fsdp(rank):
    torch.manual_seed(0)
    eager = Net()
    jfn = thunder.distributed.fsdp(thunder.jit(copy.deepcopy(eager), cache=SpecKeyCache()), device=torch.device("cpu"))
    for n in (2, 5, 3, 7):
        jfn.zero_grad()
        found = jfn(_batch(n, rank))
        torch.testing.assert_close(found, eager(_batch(n, rank)))
        found.sum().backward()
        eager.zero_grad()
        (sum(eager(_batch(n, r)).sum() for r in range(2)) / 2).backward()
        for p, q in zip(jfn.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad.chunk(2)[rank])
    assert len(entries(jfn)) == 2, [e.reason for e in entries(jfn)]


@pytest.mark.long
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no distributed")
@pytest.mark.parametrize("work", [_ddp, _fsdp])
def test_data_parallel_over_two_processes(work):
    _in_two_processes(work)
