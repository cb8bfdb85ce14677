"""How often `compare` raises a false alarm, and how often it finds a planted difference, as tables in Markdown.

python -m benchmarks.compare_noise                       # synthetic pairs
python -m benchmarks.compare_noise a1.sqlite a2.sqlite …   # recordings of one program: pairs of them are equal
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from nvtx_kernels.analysis.compare.sides import recorded
from nvtx_kernels.analysis.opened import opened
from nvtx_kernels.analysis.support.noise import judged
from tabulate import tabulate

Values = NDArray[np.float64]
PLUS, STEPS, PAIRS = (0.0, 0.02, 0.05, 0.1, 0.2), (3, 5, 10, 30), 2000
HEADERS = ["noise", "recordings a side", "steps", "alarms %", *(f"+{plus:.0%} found %" for plus in PLUS[1:])]
#: Name: the noise of a step, and of a recording, as shares; and the shape of a step's noise.
NOISES = {
    "1%": (0.01, 0.0, "normal"),
    "3%": (0.03, 0.0, "normal"),
    "10%": (0.1, 0.0, "normal"),
    "3%, skewed": (0.03, 0.0, "skewed"),
    "3%, every tenth step slow": (0.03, 0.0, "outliers"),
    "1%, and 1% from run to run": (0.01, 0.01, "normal"),
}
SHAPES: dict[str, Callable[[np.random.Generator, int], Values]] = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "skewed": lambda rng, n: (rng.lognormal(0, 1, n) - np.exp(0.5)) / 2.16,  # mean 0, deviation 1
    "outliers": lambda rng, n: rng.standard_normal(n) + (rng.random(n) < 0.1) * rng.exponential(30, n),
}


def made_up(
    rng: np.random.Generator, of_step: float, of_run: float, shape: str, recordings: int, steps: int, plus: float
) -> list[Values]:
    """Return the steps of some recordings that are slower by a share, with noise by step and by run."""
    runs = 1 + of_run * rng.standard_normal(recordings)
    return [(1 + plus) * run * (1 + of_step * SHAPES[shape](rng, steps)) for run in runs]


def synthetic(rng: np.random.Generator) -> list[list[object]]:
    """Return rows of the table for made-up steps."""
    rows: list[list[object]] = []
    for name, (of_step, of_run, shape) in NOISES.items():
        for recordings in (1, 2, 3) if of_run else (1,):
            for steps in STEPS:
                side = partial(made_up, rng, of_step, of_run, shape, recordings, steps)
                found = [
                    np.mean([judged(side(0), side(plus)) == "differs" for _ in range(PAIRS)]) for plus in PLUS
                ]
                rows.append([name, recordings, steps, *(f"{100 * share:.1f}" for share in found)])
    return rows


def of_recordings(paths: Sequence[Path]) -> list[list[object]]:
    """Return rows of the table for all pairs of recordings, and of sets of three that share none."""
    measured: dict[str, list[Values]] = {"step time": [], "work": []}
    for path in paths:
        (recording,) = recorded(opened(path))
        measured["step time"].append(recording.step_ns[1:])
        measured["work"].append(recording.of_places(recording.times))
    rows: list[list[object]] = []
    for name, series in measured.items():
        spread = np.median([np.std(steps) / np.mean(steps) for steps in series])
        medians = [np.median(steps) for steps in series]
        noise = f"{name}: steps {spread:.0%}, runs {np.std(medians) / np.mean(medians):.0%}"
        for size in (1, 3) if len(paths) >= 6 else (1,):
            sets = list(combinations(range(len(series)), size))
            pairs = [(a, b) for a in sets for b in sets if a < b and not {*a} & {*b}]
            for steps in STEPS:
                if min(map(len, series)) + 1 < steps:
                    continue
                found = [
                    np.mean([
                        judged([series[i][:steps] for i in a], [series[i][:steps] * (1 + plus) for i in b])
                        == "differs"
                        for a, b in pairs
                    ])
                    for plus in PLUS
                ]  # fmt: skip
                rows.append([f"{noise}; {len(pairs)} pairs", size, steps, *(f"{100 * x:.1f}" for x in found)])
    return rows


def main(arguments: Sequence[str]) -> None:
    """Print the table."""
    rows = of_recordings([*map(Path, arguments)]) if arguments else synthetic(np.random.default_rng(0))
    print(tabulate(rows, HEADERS, tablefmt="github", disable_numparse=True))


if __name__ == "__main__":
    main(sys.argv[1:])
