"""The Python blocks of README and docs run, and print what stands below them.

Blocks of one file share a namespace.  A ``text`` block right below a Python block is what that prints.
"""

import contextlib
import importlib.util
import io
import linecache
import pathlib
import re

import pytest
import torch

ROOT = pathlib.Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)


def blocks(text):
    """For each Python block its first line, its text, and the text block right below it, if there is one."""
    found = list(BLOCK.finditer(text))
    for block, after in zip(found, [*found[1:], None], strict=False):
        if block[1] == "python":
            shown = after is not None and after[1] == "text" and not text[block.end() : after.start()].strip()
            yield text.count("\n", 0, block.start()) + 1, block[2], after[2] if shown else None


def run(page, start, text, namespace):
    """What a block prints; its lines are numbered as in the page."""
    source = "\n" * start + text
    linecache.cache[str(page)] = (len(source), None, source.splitlines(keepends=True), str(page))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(source, str(page), "exec"), namespace)
    return out.getvalue()


def comparable(text):
    """Without times and lines of code, nor the width of the column in which they stand."""
    text = re.sub(r"\b\d+\.\d+ s\b", "0.0 s", text)
    text = re.sub(r" *\b[\w-]+\.(?:md|py):\d+", " model.py:1", text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_blocks_run_and_print_what_stands_below(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__", "model": torch.nn.Linear(2, 2)}
    for start, text, shown in blocks(page.read_text(encoding="utf-8")):
        printed = run(page, start, text, namespace)
        if shown is not None:
            assert comparable(printed) == comparable(shown), f"{page.name}:{start}"


def test_links_lead_somewhere():
    for page in [*PAGES, ROOT / "bench" / "README.md", ROOT / "examples" / "README.md"]:
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
            assert target.startswith("https://") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_reference_is_up_to_date():
    spec = importlib.util.spec_from_file_location("make_api", ROOT / "docs" / "make_api.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / "api.md").read_text(encoding="utf-8") == module.page(), "run python docs/make_api.py"


def test_what_the_readme_says_of_other_caches_is_so():
    namespace = {"__name__": "__main__"}
    readme = ROOT / "README.md"
    start, text, _ = next(b for b in blocks(readme.read_text(encoding="utf-8")) if "def second_call" in b[1])
    run(readme, start, text, namespace)
    second_call, branch, add = (namespace[n] for n in ("second_call", "branch", "add"))
    assert second_call(branch, namespace["speckey"].SpecKeyCache()) == (8,)
    assert second_call(add, namespace["speckey"].SpecKeyCache()) == (2, 8)
    assert second_call(branch, "symbolic values") == (2, 1)
    with pytest.raises(RuntimeError, match="expanded size"):
        second_call(add, "symbolic values")


def test_the_runner_sees_a_wrong_output():
    text = "```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n\n```python\nprint(2)\n```\n"
    (_, first, shown), (_, _, nothing) = blocks(text)
    assert nothing is None
    assert comparable(run(ROOT / "page.md", 1, first, {})) != comparable(shown)
