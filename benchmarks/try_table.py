"""Show predicted beside measured, of what `nvtx-kernels try --keep` kept.

python benchmarks/try_table.py FOLDER …
"""

import json
import sys
from pathlib import Path


def rows(folder: Path) -> list[tuple[str, ...]]:
    """Return a row for each change that was predicted or measured: ms, or `–`."""
    answer = json.loads((folder / "try.json").read_text())
    return [
        (
            folder.name,
            arm["lever"],
            _ms(answer["base_step_ns"]),
            _ms(arm["predicted_ns"]),
            _ms(arm["measured_ns"]),
            _ms(arm["noise_ns"]),
            arm["verdict"],
        )
        for arm in answer["arms"]
    ]


def _ms(ns: float | None) -> str:
    return "–" if ns is None else f"{ns / 1e6:.2f}"


def main(folders: list[str]) -> None:
    """Print a table in Markdown."""
    print("| program | change | step, ms | predicted | measured | ± | verdict |\n|---|---|---|---|---|---|---|")
    for folder in folders:
        for row in rows(Path(folder)):
            print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main(sys.argv[1:])
