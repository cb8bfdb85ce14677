"""The reports that a command's paths name: files, folders, patterns. Separate, so that commands load no reader."""

from __future__ import annotations

from collections.abc import Sequence
from glob import has_magic
from pathlib import Path

from ..errors import UsageError
from . import ENDINGS

#: The suffix of summaries; nsys writes one such file a table, of which a report has at least one of these.
SUMMARY = ".parquet"
TABLES = ("StringIds", "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL")


def expand(paths: Sequence[Path]) -> list[Path]:
    """Replace folders of reports and patterns by the reports they contain, in the order of their names.

    Raises UsageError if a folder or pattern contains none.
    """
    return list(dict.fromkeys(report for path in paths for report in _reports_in(path)))


def _reports_in(path: Path) -> list[Path]:
    try:
        exists = path.exists()
    except OSError:  # a name that is too long; the reader says so
        return [path]
    if path.is_dir() and not _is_export(path):
        reports = [
            inside
            for inside in path.iterdir()
            if inside.name.endswith((*ENDINGS, SUMMARY)) or (inside.is_dir() and _is_export(inside))
        ]
    elif has_magic(str(path)) and not exists:
        reports = list(Path(path.anchor or ".").glob(str(path.relative_to(path.anchor))))
    else:
        return [path]
    if not reports:
        raise UsageError(f"{path} contains no reports ({', '.join(ENDINGS)}, or folders of Parquet files).")
    exported = {report.with_suffix(".nsys-rep") for report in reports if report.suffix == ".sqlite"}
    return sorted(report for report in set(reports) if report not in exported)


def _is_export(folder: Path) -> bool:
    """Return whether a folder is one report that nsys exported as Parquet, and not one of reports or summaries."""
    return any((folder / f"{table}{SUMMARY}").exists() for table in TABLES)
