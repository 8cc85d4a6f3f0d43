"""Turns the JSON of a benchmark run into a table of ratios and a plot.

    python -m pytest bench --benchmark-json=bench.json
    python -m bench.report bench.json docs/benchmarks.md [docs/benchmarks.svg]

The plot needs matplotlib (the extra "bench").
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path

WAYS = ["eager", "speckey", "thunder constant values", "thunder symbolic values", "torch.compile dynamic"]
Medians = dict[str, dict[str, dict[str, float]]]  # group -> case -> way -> seconds


def medians(run: dict) -> tuple[Medians, dict[str, int]]:
    """Medians in seconds, and how many programs each way compiled in the workload."""
    found: Medians = defaultdict(lambda: defaultdict(dict))
    compiles: dict[str, int] = {}
    for benchmark in run["benchmarks"]:
        params = dict(benchmark["params"] or {})
        way = params.pop("way")
        case = ", ".join(f"{name} {value}" for name, value in sorted(params.items())) or "-"
        found[benchmark["group"]][case][way] = benchmark["stats"]["median"]
        if benchmark.get("extra_info", {}).get("compiles") is not None:
            compiles[way] = benchmark["extra_info"]["compiles"]
    return found, compiles


def duration(seconds: float) -> str:
    for unit, size in (("s", 1), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def table(groups: Medians) -> list[str]:
    lines = []
    for group, cases in groups.items():
        ways = [w for w in [*WAYS, "bare computation"] if any(w in case for case in cases.values())]
        lines += [f"## {group}", ""]
        lines += ["| | " + " | ".join(ways) + " |", "|---" * (len(ways) + 1) + "|"]
        for case, times in cases.items():
            own = times.get("speckey")
            cells = []
            for way in ways:
                if way not in times:
                    cells.append("")
                elif way == "speckey" or own is None:
                    cells.append(f"**{duration(times[way])}**")
                else:
                    cells.append(f"{duration(times[way])} ({times[way] / own:.2g}x)")
            lines.append(f"| {case} | " + " | ".join(cells) + " |")
        lines.append("")
    return lines


def promises(groups: Medians) -> list[str]:
    """The ratios that speckey is held to."""
    lines = []

    def tell(text: str, ratio: float, limit: float) -> None:
        lines.append(f"| {text} | {ratio:.3g} | at most {limit:.3g} | {'yes' if ratio <= limit else '**no**'} |")

    hit = groups.get("hit on a + b", {}).get("-", {})
    if hit:
        tell("hit on a + b / thunder constant values", hit["speckey"] / hit["thunder constant values"], 1 / 10)
        tell("hit on a + b / torch.compile dynamic", hit["speckey"] / hit["torch.compile dynamic"], 1 / 3)
    many = groups.get("hit against number of entries", {})
    for by in ("dimension", "signature"):
        oldest, newest, only = (
            many.get(f"by {by}, entries {n}, which {which}", {}).get("speckey")
            for n, which in ((512, "oldest"), (512, "newest"), (1, "oldest"))
        )
        if oldest and newest and only:
            tell(f"told apart by {by}: oldest of 512 entries / newest", oldest / newest, 1.3)
            tell(f"told apart by {by}: oldest of 512 entries / an only one", oldest / only, 1.5)
    modules = groups.get("module with many parameters", {})
    over = {
        n: {way: times[way] - times["bare computation"] for way in ("speckey", "thunder constant values")}
        for n in (100, 1000)
        if (times := modules.get(f"parameters {n}")) and "bare computation" in times
    }
    if 100 in over:
        tell(
            "100 parameters: overhead / thunder constant values",
            over[100]["speckey"] / over[100]["thunder constant values"],
            1 / 8,
        )
    if over.keys() == {100, 1000}:
        tell("overhead of 1,000 parameters / of 100", over[1000]["speckey"] / over[100]["speckey"], 12)
    for mode, limit in (("forward", 1.3), ("training", 1.5)):
        times = groups.get("one compile of nanoGPT", {}).get(f"mode {mode}")
        if times:
            ratio = times["speckey"] / times["thunder constant values"]
            tell(f"a compile, {mode} / thunder constant values", ratio, limit)
    workload = groups.get("fifty shapes on nanoGPT, from cold", {}).get("-", {})
    if workload:
        ratio = workload["speckey"] / workload["thunder constant values"]
        tell("fifty shapes / thunder constant values", ratio, 1 / 10)
    return lines


def plot(groups: Medians, path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    rows = [(g, c, t) for g, cases in groups.items() for c, t in cases.items() if "speckey" in t and len(t) > 1]
    rows = [row for row in rows if row[0] != "hit against number of entries" or "entries 8" in row[1]]
    figure, axes = pyplot.subplots(figsize=(9, 0.42 * len(rows) + 1.2))
    for way in (w for w in WAYS if w != "speckey"):
        points = [(t[way] / t["speckey"], i) for i, (_, _, t) in enumerate(rows) if way in t]
        axes.scatter(*zip(*points, strict=True), label=way, s=28, zorder=3) if points else None
    axes.axvline(1, color="black", linewidth=1.2, label="speckey")
    axes.set_xscale("log")
    axes.set_xlabel("time / speckey's time (right of the line: slower)")
    axes.set_yticks(range(len(rows)), [g if c == "-" else f"{g}: {c}" for g, c, _ in rows], fontsize=7)
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.legend(fontsize=7, loc="upper left")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="what pytest --benchmark-json wrote")
    parser.add_argument("table", type=Path, help="Markdown to write")
    parser.add_argument("plot", type=Path, nargs="?", help="SVG to write")
    options = parser.parse_args(argv)
    run = json.loads(options.run.read_text())
    groups, compiles = medians(run)
    info = run["machine_info"]
    lines = [
        "# Benchmarks",
        "",
        f"Medians of one run on one thread of {info['cpu']['brand_raw']}, Python {info['python_version']}, "
        f"torch {info['torch']}. In brackets: time divided by speckey's. How to run them: [bench](../bench/README.md).",
        "",
    ]
    kept = promises(groups)
    if kept:
        lines += ["| ratio | measured | promised | kept |", "|---|---|---|---|", *kept, ""]
    if options.plot:
        plot(groups, options.plot)
        lines += [f"![ratios]({options.plot.name})", ""]
    lines += table(groups)
    if compiles:
        counts = ", ".join(f"{way} {n}" for way, n in compiles.items())
        lines += [f"Programs compiled for the fifty shapes: {counts}.", ""]
    options.table.write_text("\n".join(lines))
    print("\n".join(kept))
    return 0


if __name__ == "__main__":
    sys.exit(main())
