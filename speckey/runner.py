"""An entry's own function: are values from outside the same, and if so, run the program.

Does what thunder's prologue does, or calls it where it does something unknown.  What thunder puts around
a computation (autograd and autocast switched off) stays only where it has an effect.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from speckey import thunder_hooks, torch_private
from speckey.guards import Guard, Path, PathCode, TensorMetadata, guard_lines, module_path, module_tensor_name
from speckey.signature import Description, alias_groups
from speckey.snapshot import Snapshot
from speckey.table import MISS
from speckey.thunder_hooks import Program


class Owner(Protocol):
    """The table that the entry belongs to."""

    jfn: Any
    fn: Any
    last: Any
    tick: Callable[[], int]

    def recover(self, entry: Any, error: Exception, args: tuple, kwargs: dict) -> Any: ...


def compile_run(
    owner: Owner,
    entry: Any,
    description: Description,
    guards: Mapping[Path, Guard],
    inputs: Sequence[Any],
) -> Callable[[tuple, dict], Any]:
    """``run(args, kwargs)``: the result of the call, or ``MISS`` where a guard of the entry fails.

    ``inputs`` are those of the computation on the first call.
    """
    program: Program = entry.program
    code = PathCode(indent=2)
    constants = code.constants
    constants.update(MISS=MISS, fn=owner.fn, jfn=owner.jfn, owner=owner, entry=entry, tick=owner.tick)
    constants.update(alias_groups=alias_groups, recover=owner.recover)
    used = _tensors_of_module(owner.jfn, guards)
    if entry.aliases is not None and description.paths:
        tensors = "".join(f"{code.fetch(path)}, " for path in description.paths)
        code.write(f"if alias_groups(enumerate(({tensors}))) != {code.bind(entry.aliases)}: return MISS")
    snapshot = Snapshot(owner.fn, guards, used)
    if len(snapshot.covered) <= _FEW:
        snapshot.covered.clear()
    _guards(code, snapshot, guards, used)
    to_computation, to_epilogue = _unpacked(code, snapshot, description, guards, used, program)

    code.indent = 1
    code.write("except Exception: return MISS")  # a path that is gone, a check of thunder's that fails
    code.write("entry.hits += 1")
    code.write("entry.used = tick()")
    code.write("owner.last = entry")
    code.write("try:")
    code.indent = 2
    _computation(code, description, program, to_computation, inputs)
    _epilogue(code, owner, program, to_epilogue)
    code.indent = 1
    code.write("except Exception as error: return recover(entry, error, args, kwargs)")
    if program.grad_enabled_after is not None:
        constants["set_grad_enabled"] = torch_private.set_grad_enabled()
        code.write(f"set_grad_enabled({bool(program.grad_enabled_after)})")
    code.write("return r")
    source = "\n".join(["def run(args, kwargs):", " try:", "  pass", *code.lines]) + "\n"
    exec(compile(source, "<speckey entry>", "exec"), constants)
    return constants["run"]


_FEW = 6  # as many guards cost no more than a snapshot


def _tensors_of_module(jfn: Any, guards: Mapping[Path, Guard]) -> dict[Path, tuple[dict, str]]:
    """Parameters and buffers that thunder takes from its own module, where they are the original's."""
    found: dict[Path, tuple[dict, str]] = {}
    for path, guard in guards.items():
        name = module_tensor_name(path) if isinstance(guard.frozen, TensorMetadata) else None
        if name is None:
            continue
        place = thunder_hooks.taken_from(jfn, name)
        if place is not None:
            found[path] = (place, name)
    return found


def _guards(
    code: PathCode, snapshot: Snapshot, guards: Mapping[Path, Guard], used: Mapping[Path, tuple[dict, str]]
) -> None:
    if snapshot.covered:
        code.constants["snapshot"] = snapshot
        code.write("rows = snapshot.holds()")
        code.write("if rows is None:")
        closely = code.nested()
        guard_lines(closely, snapshot.covered, "return MISS", used)
        closely.write("rows = snapshot.take()")
        guards = {path: guard for path, guard in guards.items() if path not in snapshot.covered}
    guard_lines(code, guards, "return MISS", used)


def _unpacked(
    code: PathCode,
    snapshot: Snapshot,
    description: Description,
    guards: Mapping[Path, Guard],
    used: Mapping[Path, tuple[dict, str]],
    program: Program,
) -> tuple[list[str] | None, list[str] | None]:
    """Names of the arguments of computation and epilogue; None where thunder's prologue gives them."""
    unpacking = thunder_hooks.read_prologue(program.entry)
    covered = description.structured | guards.keys()
    by_name = {name: path for path, (_, name) in used.items()}

    def plain(path: Path) -> Path | None:
        """The path of what thunder takes from its module, in the original one."""
        if path[0] in ("parameter", "buffer"):
            return by_name.get(path[1])
        if path[0] == "submodule":
            own = thunder_hooks.is_own_submodule(code.constants["jfn"], code.constants["fn"], path[1])
            return module_path(path[1]) if own else None
        if path[0] in ("attr", "item"):
            above = plain(path[1])
            return None if above is None else (path[0], above, path[2])
        return path

    if unpacking is not None and all(plain(p) in covered for p in unpacking.checked):
        wanted = [[plain(p) for p in paths] for paths in (unpacking.to_computation, unpacking.to_epilogue)]
        if all(p is not None for paths in wanted for p in paths):
            code.alias(("jfn",), "jfn")
            return _arguments(code, snapshot, wanted[0], used), [code.fetch(p) for p in wanted[1]]
    code.constants["run_prologue"] = thunder_hooks.run_prologue
    code.constants["compiled"] = program.entry
    code.write("inputs, more = run_prologue(jfn, compiled, args, kwargs)")
    return None, None


def _arguments(
    code: PathCode, snapshot: Snapshot, paths: list, used: Mapping[Path, tuple[dict, str]]
) -> list[str]:
    """Parameters, and buffers, are taken from thunder's module as many at a time as come in a row."""
    arguments: list[str] = []
    for source, group in itertools.groupby(paths, lambda p: id(used[p][0]) if p in used else None):
        row = list(group)
        if source is None:
            arguments.extend(map(code.fetch, row))
            continue
        values, keys = used[row[0]][0], [used[path][1] for path in row]
        if len(keys) == 1:
            arguments.append(f"{code.bind(values)}[{code.bind(keys[0])}]")
        elif all(path in snapshot.covered for path in row):
            arguments.append(f"*rows[{len(snapshot.rows)}]")
            snapshot.rows.append((operator.itemgetter(*keys), values))
        else:
            arguments.append(f"*{code.bind(operator.itemgetter(*keys))}({code.bind(values)})")
    return arguments


def _computation(
    code: PathCode, description: Description, program: Program, names: list[str] | None, inputs: Sequence[Any]
) -> None:
    compiled = program.entry
    given = "*inputs" if names is None else ", ".join(names)
    grad_mode = description.answer("grad mode")
    needs_no_grad = grad_mode and (
        compiled.backward_fn or any(isinstance(t, torch.Tensor) and t.requires_grad for t in inputs)
    )
    if description.answer("autocast") is not None:
        code.constants["compute"], needs_no_grad = compiled.computation_fn, False
    else:
        code.constants["compute"] = thunder_hooks.bare(compiled.computation_fn)
    if needs_no_grad:
        code.constants["set_grad_enabled"] = torch_private.set_grad_enabled()
        code.write(f"try: set_grad_enabled(False); r = compute({given})")  # an interrupt may come in between
        code.write("finally: set_grad_enabled(True)")
    else:
        code.write(f"r = compute({given})")


def _epilogue(code: PathCode, owner: Owner, program: Program, names: list[str] | None) -> None:
    compiled = program.entry
    if compiled.backward_fn:
        code.constants["attach_backward"] = thunder_hooks.attach_backward
        code.constants["compiled"] = compiled
        code.write("r = attach_backward(jfn, compiled, r)")
    epilogue, only = thunder_hooks.epilogue_for(compiled)
    if names is not None and only is not None:
        code.write(f"r = {names[only]}" if only < len(names) else f"r = r[{only - len(names)}]")
        return
    code.constants["epilogue"] = epilogue
    given = "*more, " if names is None else "".join(f"{name}, " for name in names)
    code.write(f"r = epilogue({given}*r)")
