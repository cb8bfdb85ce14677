"""The reports that a command's paths name: files, folders, patterns. Separate, so that commands load no reader."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from glob import has_magic
from pathlib import Path

from ..errors import UsageError
from . import ENDINGS


def expand(paths: Sequence[Path]) -> list[Path]:
    """Replace folders of reports and patterns by the reports they contain, in the order of their names.

    Raises UsageError if a folder or pattern contains none.
    """
    return list(dict.fromkeys(report for path in paths for report in _reports_in(path)))


def _reports_in(path: Path) -> list[Path]:
    if not _can_exist(path):
        return [path]
    if path.is_dir() and not list(path.glob("*.parquet")):
        found = [inside for inside in path.iterdir() if inside.name.endswith(ENDINGS)]
        found += [inside for inside in path.iterdir() if inside.is_dir() and list(inside.glob("*.parquet"))]
    elif has_magic(str(path)) and not path.exists():
        found = list(Path(path.anchor or ".").glob(str(path.relative_to(path.anchor))))
    else:
        return [path]
    if not found:
        raise UsageError(f"{path} contains no reports ({', '.join(ENDINGS)}, or folders of Parquet files).")
    return sorted(_without_exported_twins(found))


def _can_exist(path: Path) -> bool:
    """Return whether the system accepts this as a name; one that is too long is reported by the reader."""
    try:
        path.exists()
    except OSError:
        return False
    return True


def _without_exported_twins(paths: Iterable[Path]) -> list[Path]:
    """Leave out a .nsys-rep whose export is next to it: they are one report."""
    known = set(paths)
    return [path for path in known if path.suffix != ".nsys-rep" or path.with_suffix(".sqlite") not in known]
