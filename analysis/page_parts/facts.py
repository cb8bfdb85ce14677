"""Where a report comes from, and where all its work went."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis.kernel_names import fit
from analysis.report import Number, Report
from analysis.units import count_text, share_text, time_text
from analysis.views import graphs, provenance
from analysis.views.wording import worded

LONGEST_FACT = 200


def facts(report: Report) -> dict[str, Any]:
    """Return heading, provenance, accounting and the figures at the top as texts, and the work's parts in ns."""
    return {
        "heading": [fit(part, LONGEST_FACT) for part in provenance.facts(report)],
        "measured": _measured(report),
        "time": worded(graphs.counted_time(report), report.provenance),
        "span": provenance.span(report),
        "provenance": [(name, fit(str(value), LONGEST_FACT)) for name, value in _provenance(report)],
        "accounting": [worded(line, report.provenance) for line in _accounting(report)],
        "parts": [
            (worded(label, report.provenance), getattr(report.totals, key))
            for key, label in provenance.PARTS
            if getattr(report.totals, key)
        ],
        "figures": _figures(report),
        "notes": [fit(note, 5 * LONGEST_FACT) for note in report.notes],
    }


def _measured(report: Report) -> str:
    """Name what is measured, as headings do."""
    time = graphs.counted_time(report)
    return f"{time[0].upper()}{time[1:]}" if graphs.of_graphs(report) else provenance.kernel_time(report)


def _accounting(report: Report) -> tuple[str, ...]:
    """Say where the work went, per step where the page's figures are."""
    return provenance.accounting_per_step(report) if report.steps else provenance.accounting(report)


def scope(report: Report) -> str:
    """Say over what the page's figures are counted: they are means per step where there are steps."""
    return (
        f"per step, mean of {report.steps}"
        if report.steps > 1
        else "in the one step"
        if report.steps
        else "in all"
    )


def _provenance(report: Report) -> list[tuple[str, object]]:
    source = report.provenance
    told = [
        ("File", source.file),
        ("GPU", ", ".join(source.gpus)),
        ("Recorded by", source.tool),
        ("Export schema", source.schema),
        ("Unit of work", source.unit_of_work),
        ("Measured steps", report.steps or "none"),
        ("Warm-up", "counted" if report.warm_up_included else "left out"),
        *((f"Run: {key.replace('_', ' ')}", value) for key, value in source.run.items() if not _of_ranges(value)),
    ]
    return [(name, value) for name, value in told if value not in ("", None)]


def _of_ranges(value: object) -> bool:
    """Tell whether a run says this of each of its ranges: too much for a list of facts."""
    return isinstance(value, Mapping)


def _figures(report: Report) -> list[tuple[str, str, str]]:
    """Return (label, figure, what it is of) of the whole and of each phase."""
    per = report.steps or 1
    kernels = [row for row in graphs.counted(report).phases if row.kernels]
    whole, gemm = sum(row.kernel_ns for row in kernels), sum(row.gemm_ns for row in kernels)
    launches = sum(row.kernels for row in kernels)
    what = "kernel and graph" if graphs.of_graphs(report) else "kernel"
    return [
        (_measured(report), time_text(whole / per), scope(report)),
        *((row.phase, time_text(row.kernel_ns / per), _of(row.kernel_ns, whole)) for row in kernels),
        ("GEMM", share_text(gemm / whole if whole else 0), f"{time_text(gemm / per)}"),
        (worded(f"{what} launches", report.provenance), count_text(round(launches / per, 1)), scope(report)),
    ]


def _of(part: Number, whole: Number) -> str:
    return f"{share_text(part / whole if whole else 0)} of it"
