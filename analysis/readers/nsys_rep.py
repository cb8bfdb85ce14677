"""nsys's own report files: exported through nsys, where it is installed, into a temporary SQLite file."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from analysis.errors import NotAReport
from analysis.readers import nsys_sqlite
from analysis.trace import Trace

EXPORT_TIMEOUT_S = 3600


def read(path: Path) -> Trace:
    """Export a .nsys-rep with nsys and read the result; nothing is written beside the report.

    Raises NotAReport where nsys is not installed, or cannot read the report.
    """
    nsys = shutil.which("nsys")
    if nsys is None:
        raise NotAReport(
            f"{path} needs nsys to be read, and nsys is not on the PATH. On a machine that has it, run: "
            f"nsys export --type sqlite {path.name}"
        )
    with tempfile.TemporaryDirectory(prefix="nvtx-kernels-") as folder:
        exported = Path(folder) / f"{path.stem}.sqlite"
        _export(nsys, path, exported)
        trace = nsys_sqlite.read(exported)
    return replace(trace, provenance=replace(trace.provenance, file=path.name))


def _export(nsys: str, path: Path, exported: Path) -> None:
    command = [nsys, "export", "--type", "sqlite", "--output", str(exported), "--", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=EXPORT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotAReport(f"{nsys} could not be run on {path}: {error}.") from error
    if done.returncode or not exported.exists():
        said = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        raise NotAReport(f"nsys could not export {path}: {said[-1]}. A newer report needs a newer nsys.")
