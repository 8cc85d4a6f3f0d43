"""Thunder's own tests, once with thunder as it is and once with ``SpecKeyCache`` as the default cache.

    python -m tests.thunder_suite                          all files, minutes to hours
    python -m tests.thunder_suite test_core --most 100     a sample of one file

Prints the tests that come out differently, or warn of something new.  ``thunder_suite_differences.toml`` lists
those that are known, with the reason; one that is not listed, or listed and not there any more, makes the exit
status 1.  Only differences count: a test that needs a GPU or a package that is not there fails, or is skipped, both
ways.  The tests import fdm, transformers (4.52), litgpt, lightning and bitsandbytes besides what thunder needs.

Is also the pytest plugin that both runs take (``-p tests.thunder_suite``).
"""

from __future__ import annotations

import argparse
import collections
import functools
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

try:
    import tomllib
except ImportError:  # Python 3.10; pytest brings it there
    import tomli as tomllib

FILES = (
    "test_jit_general",
    "test_core",
    "test_grad",
    "test_transforms",
    "test_inplace_copy",
    "test_update_aliases",
    "test_autocast",
    "test_networks",
    "test_recipes",
    "test_dynamo",
    "test_examine",
    "test_extend",
)
MOST = 500  # tests of a file; of one with more, a fixed sample is run
SECONDS = 300  # a test may take
KNOWN = Path(__file__).with_name("thunder_suite_differences.toml")
_ROOT = Path(__file__).parents[1]
_WAYS = ("plain", "speckey")


# -- the plugin --------------------------------------------------------------------------------------


def _way() -> str:
    return os.environ.get("THUNDER_SUITE_WAY", "")


def pytest_configure(config):
    if _way() == "plain":  # without the hooks of speckey
        spec = importlib.util.spec_from_file_location("thunder_import", _ROOT / "speckey" / "thunder_import.py")
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    elif _way() == "speckey":
        _make_default()
    else:
        return
    config.pluginmanager.register(_Outcomes(os.environ["THUNDER_SUITE_OUT"]))


def _make_default() -> None:
    import speckey

    import thunder  # isort: skip

    jit = thunder.jit

    @functools.wraps(jit)
    def jit_(*fn, cache=None, **options):
        return jit(*fn, cache=speckey.SpecKeyCache() if cache is None else cache, **options)

    thunder.jit = jit_


class _Outcomes:
    """Writes one line of JSON per test, so that a run that dies is known up to there."""

    def __init__(self, file: str) -> None:
        self._file = open(file, "a")  # noqa: SIM115 (as long as the run)
        self._outcome: dict[str, tuple[str, str]] = {}
        self._warnings: dict[str, list[str]] = collections.defaultdict(list)

    def pytest_collection_modifyitems(self, config, items):
        most = int(os.environ["THUNDER_SUITE_MOST"])
        if most and len(items) > most:
            items.sort(key=lambda item: zlib.crc32(item.nodeid.rpartition("::")[2].encode()))
            config.hook.pytest_deselected(items=items[most:])
            del items[most:]
            items.sort(key=lambda item: item.name)

    def pytest_runtest_setup(self, item):
        def stop(*_):
            raise TimeoutError(f"took more than {SECONDS} s")

        signal.signal(signal.SIGALRM, stop)
        signal.alarm(SECONDS)

    def pytest_runtest_logreport(self, report):
        name = _short(report.nodeid)
        if report.when == "call" or report.outcome != "passed":
            outcome = report.outcome
            if hasattr(report, "wasxfail"):
                outcome = "xfailed" if outcome == "skipped" else "xpassed"
            elif outcome == "failed" and report.when != "call":
                outcome = "error"
            self._outcome[name] = outcome, _last_line(report)
        if report.when == "teardown":
            signal.alarm(0)
            outcome, text = self._outcome.pop(name, ("none", ""))
            line = {"test": name, "outcome": outcome, "text": text, "warnings": self._warnings.pop(name, [])}
            print(json.dumps(line), file=self._file, flush=True)

    def pytest_warning_recorded(self, warning_message, nodeid):
        if nodeid:
            text = f"{warning_message.category.__name__}: {str(warning_message.message).splitlines()[0]}"
            self._warnings[_short(nodeid)].append(_without_numbers(text))


def _short(nodeid: str) -> str:
    return nodeid.rpartition("::")[2]


def _without_numbers(text: str) -> str:
    """Addresses, times and counters differ between any two runs."""
    return re.sub(r"0x[0-9a-f]+|\d+", "#", text)[:200]


def _last_line(report) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr or "").strip().partition("\n")[0][:300]


# -- the script --------------------------------------------------------------------------------------


def run(file: str, way: str, out: Path, most: int) -> dict[str, dict]:
    """The outcomes of one file, by test."""
    environment = {
        **os.environ,
        "THUNDER_SUITE_WAY": way,
        "THUNDER_SUITE_OUT": str(out),
        "THUNDER_SUITE_MOST": str(most),
    }
    out.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "-q", "-p", "tests.thunder_suite", "-p", "no:randomly"]
    command += ["-p", "no:cacheprovider", "--no-header", "--tb=short", "--pyargs", f"thunder.tests.{file}"]
    with open(out.with_suffix(".log"), "w") as log:
        subprocess.run(command, cwd=_ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False)
    return read(out)


def read(out: Path) -> dict[str, dict]:
    """The outcomes in a file; none where there is no such file."""
    if not out.exists():
        return {}
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    return {f"{out.name.partition('.')[0]}::{line['test']}": line for line in lines}


def differences(plain: dict[str, dict], speckey: dict[str, dict]) -> dict[str, str]:
    """What is different with speckey, by test."""
    found = {}
    for name in plain.keys() | speckey.keys():
        before, after = plain.get(name), speckey.get(name)
        if before is None or after is None:
            found[name] = f"was {'not ' if before is None else ''}run plain only"
        elif before["outcome"] != after["outcome"]:
            found[name] = f"{before['outcome']} -> {after['outcome']}: {after['text'] or before['text']}"
        else:
            new = set(after["warnings"]) - set(before["warnings"])
            if new:
                found[name] = f"warns: {'; '.join(sorted(new))}"
    return found


def known() -> dict[tuple[str, str], str]:
    """Reasons for differences, by a pattern for the names of tests and what is different with them."""
    entries = tomllib.loads(KNOWN.read_text())["difference"]
    return {(entry["test"], entry["what"]): " ".join(entry["reason"].split()) for entry in entries}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", metavar="FILE", help=f"of {', '.join(FILES)}")
    parser.add_argument("--most", type=int, default=MOST, help=f"tests of a file, 0 for all ({MOST})")
    parser.add_argument("--results", type=Path, help="folder to keep outcomes and logs in")
    parser.add_argument("--reuse", choices=(*_WAYS, "both"), help="take these outcomes from --results")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.files) - set(FILES))
    if unknown:
        parser.error(f"no such file: {', '.join(unknown)}")
    if options.reuse and not options.results:
        parser.error("--reuse needs --results")
    results = options.results or Path(tempfile.mkdtemp(prefix="thunder_suite_"))
    results.mkdir(parents=True, exist_ok=True)
    reasons, ran, failed = known(), set(), False
    met: set[tuple[str, str]] = set()
    for file in options.files or FILES:
        outcomes = []
        for way in _WAYS:
            out = results / f"{file}.{way}.jsonl"
            reuse = options.reuse in (way, "both") and out.exists()
            outcomes.append(read(out) if reuse else run(file, way, out, options.most))
        counts = [collections.Counter(line["outcome"] for line in o.values()) for o in outcomes]
        print(f"{file}: {_counted(counts[0])} plain; {_counted(counts[1])} with SpecKeyCache", flush=True)
        if not outcomes[0]:
            print(f"  no test ran: see {results / file}.plain.log")
            failed = True
        ran.update(*outcomes)
        for name, what in sorted(differences(*outcomes).items()):
            row = next((r for r in reasons if re.fullmatch(r[0], name) and what.startswith(r[1])), None)
            if row is None:
                failed = True
                print(f"  UNEXPLAINED  {name}\n      {what}")
            else:
                met.add(row)
                print(f"  explained    {name}\n      {what}\n      {reasons[row]}")
    for pattern, what in sorted(reasons.keys() - met):
        if any(re.fullmatch(pattern, name) for name in ran):
            failed = True
            print(f"  NOT ANY MORE {pattern} ({what}): listed in {KNOWN.name}, but no different")
    print("differences that are not explained" if failed else "no difference that is not explained")
    return int(failed)


def _counted(counts: collections.Counter) -> str:
    return ", ".join(f"{n} {outcome}" for outcome, n in sorted(counts.items())) or "nothing"


if __name__ == "__main__":
    sys.exit(main())
