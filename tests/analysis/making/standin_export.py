"""Stands in for `nsys export`, of a "report" that is an SQLite export already behind a word of nsys's.

`NSYS` in the environment says how: `2025.3` is a version, `2025.3 without parquet` fails at Parquet, and
`2025.3 forgetful` leaves out the tables that it was asked for.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

MAGIC = b"NSYS"
VERSION, _, MANNER = os.environ.get("NSYS", "").partition(" ")


def main(words):
    """Do as nsys does; return the exit status."""
    if words == ["--version"]:
        sys.stdout.write(f"NVIDIA Nsight Systems version {VERSION}.1.90-253136205150v0\n")
        return 0
    sys.stdout.write("Processing [=====     50%]\rProcessing [=========100%]\n")
    output, report = Path(words[words.index("--output") + 1]), Path(words[-1]).read_bytes().removeprefix(MAGIC)
    if words[2] == "sqlite":
        output.write_bytes(report)
    elif MANNER == "without parquet":
        return 1
    else:
        _as_parquet(report, output, next(word for word in words if word.startswith("--tables=")))
    return 0


def _as_parquet(report, output, tables):
    from tests.analysis.making.parquet_folders import as_parquet  # deferred: to say a version needs no Arrow

    wanted = ["StringIds"] if MANNER == "forgetful" else tables.removeprefix("--tables=").split(",")
    output.mkdir()
    with tempfile.TemporaryDirectory() as folder:
        export = Path(folder, "report.sqlite")
        export.write_bytes(report)
        for file in as_parquet(export, Path(folder, "tables")).iterdir():
            if file.stem in wanted:
                shutil.copy(file, output)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
