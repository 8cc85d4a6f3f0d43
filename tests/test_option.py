"""``cache=SpecKeyCache()`` wherever thunder compiles, and thunder's questions about it."""

import subprocess
import sys

import pytest
import thunder
import thunder.recipes
import torch
from torch import nn

import speckey
from speckey import SpecKeyCache, entries


def double(x):
    return x * 2 + x.shape[0]


SHAPES = [(2, 3), (4, 5), (1, 3), (2, 3), (7, 2)]


def _check(jfn, fn=double):
    for shape in SHAPES:
        x = torch.randn(shape)
        torch.testing.assert_close(jfn(x), fn(x))


def test_functions_modules_and_decorators():
    _check(thunder.jit(double, cache=SpecKeyCache()))

    @thunder.jit(cache=SpecKeyCache())
    def decorated(x):
        """Twice."""
        return x * 2 + x.shape[0]

    _check(decorated)
    assert decorated.__name__ == "decorated"
    assert decorated.__doc__ == "Twice."
    module = nn.Linear(3, 2)
    jfn = thunder.jit(module, cache=SpecKeyCache())
    for batch in (2, 5, 3):
        x = torch.randn(batch, 3)
        torch.testing.assert_close(jfn(x), module(x))
    assert len(entries(jfn)) == 1


def test_one_option_serves_many_callables_each_with_entries_of_its_own():
    cache = SpecKeyCache()
    one, other = thunder.jit(double, cache=cache), thunder.jit(lambda x: x - 1, cache=cache)
    one(torch.randn(2, 3))
    assert (len(entries(one)), len(entries(other))) == (1, 0)
    torch.testing.assert_close(other(torch.ones(2)), torch.zeros(2))
    assert (len(entries(one)), len(entries(other))) == (1, 1)


def test_thunder_compile_takes_it():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    recipe = thunder.recipes.BaseRecipe(fuser="nvfuser")
    recipe.executor_names = []  # no nvFuser on a CPU
    jfn = thunder.compile(model, recipe, cache=SpecKeyCache())
    for batch in (2, 5, 3):
        x = torch.randn(batch, 3)
        torch.testing.assert_close(jfn(x), model(x))
    assert len(entries(jfn)) == 1


def test_a_recipe_may_carry_it():
    class Recipe(thunder.recipes.BaseRecipe):
        def setup_config(self):
            return {"cache": SpecKeyCache()}

    recipe = Recipe()
    recipe.executor_names = []
    model = nn.Linear(3, 2)
    jfn = thunder.compile(model, recipe)
    jfn(torch.randn(4, 3))
    jfn(torch.randn(6, 3))
    assert len(entries(jfn)) == 1


def test_thunderfx_takes_it():
    from thunder.dynamo import thunderfx

    def fn(x):
        return torch.sin(x) * 2

    compiled = thunderfx(fn, cache=SpecKeyCache(), dynamic=False)
    for shape in [(2, 3), (4, 5), (2, 3)]:
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), fn(x))
    tables = [speckey.entries(f) for info in compiled._backend.subgraph_infos for f in info.thunder_compiled_fns]
    assert tables
    assert all(len(t) == 1 for t in tables)


@pytest.mark.parametrize(
    "make", [lambda f: thunder.jit(f, cache=SpecKeyCache), lambda f: thunder.compile(f, cache=SpecKeyCache)]
)
def test_the_class_instead_of_an_instance_is_a_clear_error(make):
    with pytest.raises(TypeError, match=r"pass an instance: cache=SpecKeyCache\(\)"):
        make(double)


def test_every_other_call_is_passed_through():
    with pytest.raises(ValueError, match="Unknown cache option"):
        thunder.jit(double, cache="nonsense")
    with pytest.raises(TypeError):
        thunder.jit()
    plain = thunder.jit(double)
    _check(plain)
    assert thunder.cache_option(plain) is thunder.CACHE_OPTIONS.CONSTANT_VALUES
    with pytest.raises(TypeError, match="compiled with cache=SpecKeyCache"):
        entries(plain)


def test_a_jit_imported_before_speckey_says_so():
    program = (
        "import importlib.util as u, sys\n"
        f"s = u.spec_from_file_location('early', {speckey.thunder_import.__file__!r})\n"
        "m = u.module_from_spec(s); s.loader.exec_module(m)\n"  # as a user on an older torch: thunder, then speckey
        "from thunder import jit\n"
        "import speckey\n"
        "try: jit(lambda x: x, cache=speckey.SpecKeyCache())\n"
        "except TypeError as e: print(e)\n"
    )
    out = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True)
    assert "import speckey first" in out.stdout


def test_thunder_answers_its_questions():
    cache = SpecKeyCache()
    jfn = thunder.jit(double, cache=cache)
    for shape in SHAPES:
        jfn(torch.randn(shape))
    # (1, 3) is its own program: adding broadcasts are told apart by size one only where asked.
    misses = thunder.cache_misses(jfn)
    assert misses == len(entries(jfn)) < len(SHAPES)
    assert thunder.cache_hits(jfn) == len(SHAPES) - misses
    stats = thunder.compile_stats(jfn)
    assert stats.calls == len(SHAPES)
    assert len(stats.interpreter_cache) == misses
    assert thunder.cache_option(jfn) is cache
    assert thunder.last_traces(jfn)[-1] is not None
    assert thunder.last_prologue_traces(jfn)
    assert thunder.last_backward_traces(jfn) == []
    x = torch.randn(3, 3, requires_grad=True)
    jfn(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.full((3, 3), 2.0))
    assert thunder.last_backward_traces(jfn)
    assert thunder.list_transforms(jfn) == []


def test_a_compiled_callable_inside_another_is_traced_through():
    inner = thunder.jit(double, cache=SpecKeyCache())
    outer = thunder.jit(lambda x: inner(x) + 1, cache=SpecKeyCache())
    plain = thunder.jit(lambda x: inner(x) + 1)
    for shape in SHAPES:
        x = torch.randn(shape)
        torch.testing.assert_close(outer(x), double(x) + 1)
        torch.testing.assert_close(plain(x), double(x) + 1)


def test_versions_that_are_not_supported_are_refused(monkeypatch):
    from speckey import thunder_import

    monkeypatch.setattr(thunder_import, "_version", lambda name: {"torch": "2.15.0"}.get(name, "0.3.0"))
    with pytest.raises(ImportError, match=r"thunder 0\.2\.6 and torch >=2\.9,<2\.14; found .* 0\.3\.0 and torch 2\.15"):
        thunder_import._check_versions()


def test_the_placeholders_for_removed_methods_are_gone():
    from speckey import thunder_import

    for name in thunder_import._REMOVED_IN_TORCH_2_13:
        method = getattr(torch.Tensor, name, None)
        assert method is None or "placeholder" not in repr(method)


def test_thunders_own_look_up_is_still_there_for_its_tools():
    fn = lambda x: x * 2
    jfn = thunder.jit(fn, cache=SpecKeyCache())
    data = thunder.compile_data(jfn)
    for n in (2, 3, 2):
        compiled, inputs, _ = data.get_computation_and_inputs(torch.ones(n))
        torch.testing.assert_close(compiled.computation_fn(*inputs)[0], torch.full((n,), 2.0))
        torch.testing.assert_close(jfn(torch.ones(n)), torch.full((n,), 2.0))
    assert isinstance(data.cache_option, SpecKeyCache)
