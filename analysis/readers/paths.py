"""Which reports the paths of a command mean: files, folders, patterns. Alone, so that commands load no reader."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from glob import has_magic
from pathlib import Path

from ..errors import UsageError
from . import ENDINGS


def expand(paths: Sequence[Path]) -> list[Path]:
    """Replace folders of reports and patterns by the reports they hold, in the order of their names.

    Raises UsageError where a folder or pattern holds none.
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
        raise UsageError(f"{path} holds no reports ({', '.join(ENDINGS)}, or folders of Parquet files).")
    return sorted(_without_exported_twins(found))


def _can_exist(path: Path) -> bool:
    """Tell whether the system takes this for a name, as it does not if it is too long; the reader says why."""
    try:
        path.exists()
    except OSError:
        return False
    return True


def _without_exported_twins(paths: Iterable[Path]) -> list[Path]:
    """Leave out a .nsys-rep whose export lies beside it: they are one report."""
    known = set(paths)
    return [path for path in known if path.suffix != ".nsys-rep" or path.with_suffix(".sqlite") not in known]
