"""Profiles: what they hold, that they bring back entries in another process, and that damaged ones do nothing."""

import collections
import json
import subprocess
import sys
import warnings

import pytest
import thunder
import torch

import speckey
from speckey import ProfileError, SpecKeyCache, entries, replay_profile, save_profile
from tests.helpers import compiled, same

PROGRAM = '''
import speckey
import sys
import thunder
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.line = torch.nn.Linear(4, 2)
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x, *, options=None, scale=1.0):
        if x.shape[0] > 8:
            scale = scale * 2
        out = self.drop(self.line(x)) * scale
        return out if options is None else out + options["bias"][0] * options["n"]


def calls(jfn):
    """One call for each entry, in all kinds of surroundings."""
    options = lambda: {"bias": [torch.ones(2)], "n": 3}
    jfn(torch.ones(3, 4))
    jfn(torch.ones(20, 4, requires_grad=True)).sum().backward()
    jfn(torch.ones(5, 4), options=options())
    with torch.no_grad():
        jfn(torch.ones(6, 4), scale=0.25)
    with torch.inference_mode():
        jfn(torch.ones(6, 4), scale=float("nan"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        jfn(torch.ones(6, 4))
    torch.set_default_dtype(torch.float64)
    jfn(torch.ones(6, 4, dtype=torch.float32))
    torch.set_default_dtype(torch.float32)
    jfn.eval()
    jfn(torch.ones(7, 4))
    jfn.train()


model = Model()
jfn = thunder.jit(model, cache=speckey.SpecKeyCache())
'''
REPLAY = '''
entries = speckey.replay_profile(jfn, sys.argv[1], progress=True)
with speckey.stance("fail_on_retrace"):
    calls(jfn)
print(len(entries), thunder.cache_hits(jfn), thunder.cache_misses(jfn), model.training, torch.is_grad_enabled())
'''


def test_in_a_fresh_process_the_first_call_on_each_is_a_hit(tmp_path):
    namespace = {"__name__": "program"}
    exec(compile(PROGRAM, "program.py", "exec"), namespace)
    jfn = namespace["jfn"]
    namespace["calls"](jfn)
    path = tmp_path / "profile.json"
    number = len(entries(jfn))
    assert save_profile(jfn, path) == number >= 8
    script = tmp_path / "replay.py"
    script.write_text(PROGRAM + REPLAY)
    run = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), str(path)], capture_output=True, text=True, cwd=_root()
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == [str(number), "8", "0", "True", "True"]
    assert f"{number}/{number} compiled" in run.stderr


def _root():
    import pathlib

    return pathlib.Path(speckey.__file__).parent.parent


@pytest.fixture(autouse=True)
def _path(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(_root()))


def fn(x, what=None, *more):
    return x * 2 if what is None else x * 3


def replayed(jfn, path):
    again = compiled(fn)
    found = replay_profile(again, path)
    assert found == entries(again)
    assert [str(e.key) for e in found] == [str(e.key) for e in entries(jfn)]
    assert (thunder.cache_hits(again), thunder.cache_misses(again)) == (0, 0)
    return again


VALUES = [
    None,
    True,
    10**30,
    -0.0,
    float("inf"),
    1 + 2j,
    "text: \u00e9 \ud800",
    b"\x00\xff",
    ...,
    torch.int64,
    torch.device("cpu"),
    slice(1, None, 2),
    (1, [2, {"a": None, 3: (4.5,)}]),
    collections.OrderedDict(b=1, a=2),
    torch.Size([2, 3]),
    torch.ones(2, dtype=torch.bfloat16),
    torch.ones(0, 3, dtype=torch.complex64, requires_grad=True),
]


def test_arguments_of_all_kinds_come_back(tmp_path):
    jfn = compiled(fn)
    for value in VALUES:
        jfn(torch.ones(3), value)
    shared = [1]
    jfn(torch.ones(3), shared, shared)
    path = tmp_path / "profile.json"
    assert save_profile(jfn, path) == len(entries(jfn)) == len(VALUES) + 1
    again = replayed(jfn, path)
    with speckey.stance("fail_on_retrace"):
        for value in VALUES:
            again(torch.ones(3), value)
        again(torch.ones(3), shared, shared)


def test_a_leaf_with_a_gradient_and_shared_memory(tmp_path):
    def write(a, b):
        a.add_(b)
        return a * 2

    jfn = compiled(write)
    base = torch.ones(6)
    jfn(base[:3], base[3:])
    leaf = torch.ones(4, requires_grad=True)
    leaf.grad = torch.ones(4)
    jfn(torch.ones(4), leaf)
    save_profile(jfn, tmp_path / "p")
    again = compiled(write)
    replay_profile(again, tmp_path / "p")
    with speckey.stance("fail_on_retrace"):
        same(again, write, torch.ones(4), leaf)
        base = torch.ones(6)
        again(base[:3], base[3:])
        torch.testing.assert_close(base, torch.tensor([2.0, 2, 2, 1, 1, 1]))


class Config:
    pass


def test_what_json_cannot_express_is_left_out_with_its_name(tmp_path):
    jfn = compiled(fn)
    jfn(torch.ones(3))
    jfn(torch.ones(3), {"a": [Config()]})
    jfn(torch.ones(3), {2})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert save_profile(jfn, tmp_path / "p") == 1
    assert [str(w.message) for w in caught] == [
        "entry 2 of fn is not in the profile: `what['a'][0]` is a Config",
        "entry 3 of fn is not in the profile: `what` is a set",
    ]
    assert len(replay_profile(compiled(fn), tmp_path / "p")) == 1


def test_the_profile_is_what_the_arguments_were_before_the_call(tmp_path):
    def program(items):
        items.append(3)
        return items[0] * 2

    jfn = compiled(program)
    jfn([torch.ones(2)])
    save_profile(jfn, tmp_path / "p")
    (data,) = json.loads((tmp_path / "p").read_text())["entries"]
    assert len(data["args"][0]["value"]) == 1


def test_only_plain_json(tmp_path):
    jfn = compiled(fn)
    jfn(torch.full((3,), 77.5), float("nan"))
    save_profile(jfn, tmp_path / "p")
    profile = json.loads((tmp_path / "p").read_text(), parse_constant=lambda c: pytest.fail(c))
    assert (profile["format"], profile["version"], profile["function"]) == ("speckey profile", 1, "fn")
    assert "77.5" not in (tmp_path / "p").read_text()


def test_entries_that_are_there_are_not_made_again(tmp_path):
    jfn = compiled(fn)
    jfn(torch.ones(3))
    save_profile(jfn, tmp_path / "p")
    assert replay_profile(jfn, tmp_path / "p") == entries(jfn)
    assert len(entries(jfn)) == 1


def test_what_does_not_compile_any_more_is_skipped(tmp_path):
    jfn = compiled(fn)
    jfn(torch.ones(3), 1, 2)
    jfn(torch.ones(3))
    save_profile(jfn, tmp_path / "p")
    other = compiled(lambda x: x * 2)
    with pytest.warns(UserWarning, match=r"entries\[0\] of .* does not compile: TypeError"):
        assert len(replay_profile(other, tmp_path / "p")) == 1
    full = thunder.jit(fn, cache=SpecKeyCache(drop=speckey.Refuse(1)))
    with pytest.raises(speckey.EntryLimitError):
        replay_profile(full, tmp_path / "p")


def test_the_bar_shows_on_a_terminal_only(tmp_path, capsys, monkeypatch):
    jfn = compiled(fn)
    jfn(torch.ones(3))
    save_profile(jfn, tmp_path / "p")
    replay_profile(jfn, tmp_path / "p")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    replay_profile(jfn, tmp_path / "p")
    assert "] 1/1 compiled" in capsys.readouterr().err
    replay_profile(jfn, tmp_path / "p", progress=False)
    assert capsys.readouterr().err == ""


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    jfn = compiled(fn)
    jfn(torch.ones(3, 2, requires_grad=True), {"a": [1, 2.0, slice(None)]})
    path = tmp_path_factory.mktemp("profile") / "p"
    save_profile(jfn, path)
    return path.read_text()


def refused(tmp_path, text, match):
    path = tmp_path / "p"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    jfn = compiled(fn)
    with pytest.raises(ProfileError, match=match):
        replay_profile(jfn, path)
    assert entries(jfn) == ()


FOREIGN = ["{}", "[]", "3", '{"format": "other", "version": 1, "entries": []}']


@pytest.mark.parametrize("text", FOREIGN)
def test_a_foreign_file_is_refused(tmp_path, text):
    refused(tmp_path, text, "is not a profile of speckey")


@pytest.mark.parametrize("text", [b"", b"\xff\xfe\x00", b"{", b"[" * 100_000, b"\x80\x04K\x03."])
def test_a_damaged_file_is_refused(tmp_path, text):
    refused(tmp_path, text, "is damaged")


def test_another_version_is_refused(tmp_path, good):
    refused(tmp_path, good.replace('"version": 1', '"version": 2'), "has version 2; this speckey reads version 1")


CHANGES = {
    "shape": [None, 3, [-1], [1.5], [True], [2**80], [2**40, 2**40]],
    "dtype": [None, 3, "float31", "nn", []],
    "device": [None, 3, "cuda:99", "nonsense", "cpu:x"],
    "requires_grad": [None, 1, "yes"],
    "memory": ["a", -1, 1.5],
    "grad": [3, {}, {"kind": "tensor"}],
    "kind": [None, 3, [], "eval", "same", "float", "complex", "bytes", "device", "slice", "list", "dict", "Size"],
}


@pytest.mark.parametrize(("key", "value"), [(k, v) for k, values in CHANGES.items() for v in values])
def test_a_changed_tensor_is_refused(tmp_path, good, key, value):
    profile = json.loads(good)
    profile["entries"].append(json.loads(good)["entries"][0])  # a good one first: nothing of it is compiled either
    profile["entries"][1]["args"][0][key] = value
    refused(tmp_path, json.dumps(profile), r"is damaged: entries\[1\]\.args\[0\].*: expected ")


def test_no_part_may_be_missing_or_of_another_type(tmp_path, good):
    """Each value in the file in turn becomes something else, or is gone: an error of the profile's, or a compile."""
    path = tmp_path / "p"
    refusals = 0
    for change in _changes(json.loads(good)):
        path.write_text(json.dumps(change))
        try:
            speckey.profile._read(path)
        except ProfileError:
            refusals += 1
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for data in change["entries"]:
                    speckey.inputs.made(data)
    assert refusals > 60


def _changes(whole):
    def places(value, path):
        if path:
            yield path
        if isinstance(value, (dict, list)):
            for key in value if isinstance(value, dict) else range(len(value)):
                yield from places(value[key], (*path, key))

    for path in places(whole, ()):
        for new in (None, -1, 0.5, "text", [], {}, [[]], {"kind": "list"}, "gone"):
            change = json.loads(json.dumps(whole))
            above = change
            for key in path[:-1]:
                above = above[key]
            if new == "gone":
                del above[path[-1]]
            else:
                above[path[-1]] = new
            yield change


def test_misuse(tmp_path, good):
    (tmp_path / "p").write_text(good)
    with pytest.raises(TypeError, match="compiled with cache=SpecKeyCache"):
        save_profile(fn, tmp_path / "q")
    with pytest.raises(TypeError, match="compiled with cache=SpecKeyCache"):
        replay_profile(fn, tmp_path / "p")
    with pytest.raises(FileNotFoundError):
        replay_profile(compiled(fn), tmp_path / "nowhere")


def test_numbers_that_are_free_come_back(tmp_path):
    jfn = compiled(fn)
    for n in (2, 3, 4):
        jfn(torch.ones(3), n)
    assert len(entries(jfn)) == 2  # constant, then free
    save_profile(jfn, tmp_path / "p")
    again = replayed(jfn, tmp_path / "p")
    with speckey.stance("fail_on_retrace"):
        for n in (2, 3, 17):
            same(again, fn, torch.ones(3), n)
