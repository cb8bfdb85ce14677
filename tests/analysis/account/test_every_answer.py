"""Every answer to every report has the steps, step time, busy and idle time and phases of its account."""

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from nvtx_kernels.analysis.account.cells import IDLE
from nvtx_kernels.analysis.agent.answers import Reports
from nvtx_kernels.analysis.compare.changes import compare
from nvtx_kernels.analysis.compare.rules import judge, parse
from nvtx_kernels.analysis.compare.sides import recorded
from nvtx_kernels.analysis.document import SHORT, WHOLE
from nvtx_kernels.analysis.errors import AnalysisError
from nvtx_kernels.analysis.measures.fix_list import REPLAY
from nvtx_kernels.analysis.opened import opened
from nvtx_kernels.analysis.page.contents import contents
from nvtx_kernels.analysis.presenters import as_table
from nvtx_kernels.analysis.report import as_object
from nvtx_kernels.analysis.summary.file import as_sqlite, read_summary
from nvtx_kernels.analysis.support.units import share_text, time_in_digits
from nvtx_kernels.analysis.trace import MEMCPY, MEMSET
from nvtx_kernels.analysis.views import headings
from nvtx_kernels.analysis.views.fix import without_changes
from nvtx_kernels.analysis.views.overview import overview
from nvtx_kernels.analysis.views.registry import subject_of, viewer
from nvtx_kernels.analysis.vocabulary import PHASES

import nvtx_kernels as nk
from tests.analysis.making.bundled import every_report, readable
from tests.analysis.making.subjects import table

PHASE_CALLED = {headings.phase(phase): phase for phase in PHASES}


@dataclass(frozen=True)
class Asked:
    """A report, opened, and what its cells say: means of a step on a GPU, ns, or of all that was recorded."""

    path: object
    opened: object

    @property
    def partition(self):
        return self.opened.partition

    def facts(self):
        """Return all facts by name; those of steps are None where there are none."""
        divided = self.partition
        cells = divided.cells.take(np.isin(divided.cells.row, divided.counted))
        gpus = [divided.gpus_of(loop) for loop in range(len(divided.choices))]
        steps_of_gpus = sum(map(len_of_both, divided.choices, gpus))
        by_phase = np.bincount(cells.phase, cells.ns, len(PHASES)) / steps_of_gpus
        idle_ns = int(cells.ns[cells.kind == IDLE].sum()) / steps_of_gpus
        own_ns = divided.table.own_ns[divided.counted]
        step_ns = float(own_ns.mean()) if divided.has_steps else None
        return {
            "steps": len(own_ns) if divided.has_steps else 0,
            "own_ns": sorted(own_ns.tolist()),
            "step_ns": step_ns,
            "time_ns": float(own_ns.mean()),
            "idle_ns": idle_ns,
            "busy_ns": by_phase.sum() - idle_ns,
            "phases": {phase: ns for phase, ns in zip(PHASES, by_phase.tolist(), strict=True) if ns},
            "says": time_in_digits(own_ns.mean()),
            "copies": self.copies() / (steps_of_gpus / sum(map(len, gpus))),
            "busy": f"GPU busy {share_text(1 - idle_ns / by_phase.sum(), 0)}",
        }

    def copies(self):
        if not self.partition.has_steps:
            return 0
        work = self.partition.of_counted_steps.trace.work
        return int(((work.kind == MEMCPY) | (work.kind == MEMSET)).sum())

    def view(self, name, detail=WHOLE):
        return viewer(name).view(subject_of(name, self.opened, detail=detail))


def len_of_both(choice, gpus):
    return len(choice.counted) * len(gpus)


def of_json(asked, per_step):
    """Return what JSON says, in `account` and in the keys that 8c28c5a had."""
    whole = asked.opened.whole
    report = nk.analysis.report.per_step(whole) if per_step and whole.account.has_steps else whole
    answer = as_object(report)
    gpus, parts = answer["account"]["gpus"], Counter()
    assert all(sum(part["total_ns"] for part in gpu["parts"]) == gpu["total_own_ns"] for gpu in gpus)
    for gpu in gpus:
        for part in gpu["parts"]:
            parts[part["phase"], part["kind"] == "idle"] += part["total_ns"]
    times = sum(gpu["steps_counted"] or 1 for gpu in gpus)
    assert answer["report"]["step_ns"] == answer["account"]["step_ns"]
    return {
        "steps": sum(row["counted"] for row in answer["steps"]),
        "own_ns": sorted(row["own_ns"] for row in answer["steps"] if row["counted"]) or None,
        "step_ns": answer["report"]["step_ns"],
        "idle_ns": sum(ns for (_, is_idle), ns in parts.items() if is_idle) / times,
        "phases": {phase: ns / times for phase in PHASES if (ns := parts[phase, True] + parts[phase, False])},
    }


def of_busy_rows(asked):
    """Return what JSON's `busy` says: sums over the counted steps of all GPUs."""
    whole = asked.opened.whole
    if whole.account.on_cpu:
        return {}
    times = sum(gpu.steps for gpu in whole.account.gpus)
    *phases, together = as_object(whole)["busy"]
    return {
        "busy_ns": together["busy_ns"] / times,
        "idle_ns": (together["span_ns"] - together["busy_ns"]) / times,
        "phases": {row["phase"]: row["span_ns"] / times for row in phases},
    }


def of_first_screen(asked):
    """Return what the bar of the first screen says, for one GPU or each of several."""
    document = overview(asked.opened.report, SHORT)
    rows, account = table(document, "account"), asked.opened.whole.account
    if len(account.gpus) == 1:
        first_idle = next((n for n, row in enumerate(rows) if row["kind"] in ("GPU idle", "outside")), len(rows))
        idle_ns = sum(row["time_ns"] for row in rows[first_idle:])
        if not account.on_cpu and 20 * idle_ns >= account.recorded_ns:
            assert f"{time_in_digits(idle_ns)} (" in document.verdict
        return {"time_ns": sum(row["time_ns"] for row in rows), "idle_ns": idle_ns, "verdict": document.verdict}
    sums = [sum(row[f"{kind}_ns"] for kind in ("compute", "communication", "copy", "idle")) for row in rows]
    means = {gpu.gpu: gpu.total_own_ns / gpu.steps for gpu in account.gpus}
    assert sums == [pytest.approx(means[row["gpu"]]) for row in rows]
    return {"verdict": document.verdict}


def of_view_idle(asked):
    """Return what the table of limits says, and on a CPU that of causes."""
    if asked.opened.whole.account.on_cpu:
        return {"idle_ns": table(asked.view("idle", SHORT), "idle")[-1]["idle_ns"]}
    *phases, together = table(asked.view("idle"), "limits")
    return {
        "busy_ns": together["busy_ns"],
        "idle_ns": together["idle_ns"],
        "phases": {PHASE_CALLED[row["phase"]]: row["time_ns"] for row in phases},
    }


def of_causes_and_places(asked):
    """Return how long the tables of causes and of ranges say that a GPU is idle."""
    gpus = asked.opened.whole.account.gpus
    shown = asked.view("idle")
    by_place = sum(row["idle_ns"] for row in table(shown, "places"))
    if len(gpus) == 1:
        assert by_place == pytest.approx(sum(row["idle_ns"] for row in table(shown, "idle")))
    return {"idle_ns": by_place}


def of_view_steps(asked):
    """Return what the mean of the counted steps says, and all values for programs."""
    mean = table(asked.view("steps", SHORT), "steps")[-1]
    numbers = set(asked.partition.table.number[asked.partition.counted].tolist())
    rows = [row for row in table(asked.view("steps"), "steps") if row["level"] == "step"]
    rows = [row for row in rows if row["step"] in numbers]
    return {
        "steps": len(rows),
        "own_ns": sorted(row["own_ns"] for row in rows),
        "step_ns": mean["own_ns"],
        "idle_ns": mean.get("idle_ns", 0),
    }


def of_view_fix(asked):
    """Return the step that what to fix is measured by, which is one process's; no change takes more off it."""
    fixes = asked.opened.fixes
    assert (fixes.kind == REPLAY) is not bool(fixes.reason)
    assert all(0 < fix.alone_ns <= fixes.step_ns * 1.000001 for fix in fixes.fixes)
    is_alone = len(asked.partition.choices) == 1
    return {"step_ns": fixes.recorded_step_ns} if fixes.kind == REPLAY and is_alone else {}


def of_efficiency(asked):
    """Return the time by which MFU divides."""
    return {"step_ns": {row["time_ns"] for row in table(asked.view("efficiency"), "step")}.pop()}


def of_page(asked):
    """Return the texts and numbers of a page."""
    (page,) = contents([asked.opened]).reports
    facts = {"verdict": page["answer"].removesuffix(without_changes(asked.opened.fixes))}
    if asked.opened.per_step:
        facts["steps"] = page["data"]["per"]
        gpus = page["bars"]["gpus"] if page["bars"] else []
        facts |= {"step_ns": gpus[0]["ns"]} if len(gpus) == 1 else {}
    return facts


def of_frames(asked):
    """Return what the library's frames say."""
    ranking = nk.rank(asked.opened.trace)
    rows, pieces = ranking.step_times, None
    facts = {"step_ns": ranking.step_ns}
    if len(rows):
        facts |= {"own_ns": sorted(rows[rows["counted"]]["own_ns"]), "steps": int(rows["counted"].sum())}
    if not asked.partition.on_cpu:
        pieces = nk.idle(asked.opened.trace, pieces=True)
        cells = asked.partition.cells
        assert (pieces["end_ns"] > pieces["start_ns"]).all()
        counted_idle = cells.ns[np.isin(cells.row, asked.partition.counted) & (cells.kind == IDLE)].sum()
        at_end = sum(gpu.total_ns(kind="idle", what="no more work") for gpu in ranking.report.account.gpus)
        measured = (pieces["end_ns"] - pieces["start_ns"])[pieces["cause"] != "no more work"].sum()
        assert measured == counted_idle - at_end
    return facts


def of_agent(asked):
    """Return what an agent is told."""
    reports = Reports(asked.path.parent)
    told = reports.overview(asked.path.name)
    return {"step_ns": told["step_ns"], "verdict": told["answer"]}


def of_communication(asked):
    """Return how many copies a step is said to have, on all GPUs."""
    shown = asked.view("communication")
    is_told = asked.partition.has_steps and any(each.key == "copies" for each in shown.tables)
    return {"copies": sum(row["count"] for row in table(shown, "copies"))} if is_told else {}


def of_compare(asked):
    """Return the steps of a side of a comparison, by which `--fail-on` judges."""
    sides, whole = recorded(asked.opened), asked.opened.whole
    if not sides:
        return {}
    own_ns = sorted(ns for side in sides for ns in side.step_ns)
    both = compare(whole, whole, sides=(sides, sides))
    judged = judge(parse("step time > +1%"), both).change
    assert both.steps.are_alone or own_ns[0] <= judged.a_ns == judged.b_ns <= own_ns[-1]
    return {"own_ns": own_ns}


def of_summary(asked, folder):
    """Return what a summary of the report says."""
    path = folder / "report.summary.sqlite"
    path.write_bytes(as_sqlite(asked.opened.attribution, asked.opened.whole, rank=0, host="a"))
    read = read_summary(path)
    assert read.account == asked.opened.whole.account
    return {"step_ns": read.step_ns, "steps": read.counted_steps}


ANSWERS = {
    "json": lambda asked: of_json(asked, per_step=False),
    "json per step": lambda asked: of_json(asked, per_step=True),
    "busy": of_busy_rows,
    "first screen": of_first_screen,
    "idle": of_view_idle,
    "causes and places": of_causes_and_places,
    "steps": of_view_steps,
    "fix": of_view_fix,
    "efficiency": of_efficiency,
    "page": of_page,
    "frames": of_frames,
    "agent": of_agent,
    "communication": of_communication,
    "compare": of_compare,
}


@pytest.fixture(scope="module", params=every_report())
def asked(request, tmp_path_factory):
    path = readable(request.param, tmp_path_factory.mktemp("report"))
    return Asked(path, opened(path))


def agrees(name, value, expected):
    """Return whether an answer's fact is as expected."""
    if not expected["steps"] and name in ("verdict", "own_ns", "step_ns"):
        return name == "verdict" or not value
    if name == "verdict":
        return expected["says"] in value
    if name in ("says", "busy"):
        return value == expected[name]
    return value == pytest.approx(expected[name], rel=1e-9)


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_is_the_accounts(asked, answer):
    try:
        facts = ANSWERS[answer](asked)
    except AnalysisError as error:
        pytest.skip(f"{answer}: {error}")
    expected = asked.facts()
    wrong = {name: (value, expected[name]) for name, value in facts.items() if not agrees(name, value, expected)}
    assert wrong == {}


TITLE = re.compile(r"(?:A step|A call|All that was recorded), ([\d.]+) (ns|µs|ms|s)\b")
NUMBER = re.compile(r"≈0|[\d,]*\d(?:\.\d+)?(?=%?(?:\s|$))")
BAR = re.compile(r"^.*[█▓▒░]")
UNITS = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}


def rounded(text, unit):
    """Return a number that is shown, and by how much it may have been rounded, ns."""
    decimals = len(text.partition(".")[2])
    return np.array([float(text.replace("≈", "").replace(",", "")), 0.5 * 10.0**-decimals]) * UNITS[unit]


def first_table(lines):
    """Return the time that the first table is of, its unit, and its rows of numbers, as people read them."""
    begin = next(n for n, line in enumerate(lines) if TITLE.match(line))
    table = lines[begin : [*lines, ""].index("", begin)]
    headings = next(n for n, line in enumerate(table) if BAR.search(line))
    title = TITLE.match(table[0])
    heading = " ".join(table[:headings])[title.end() :]
    unit = next(unit for unit in UNITS if re.search(rf"\b{unit}\b", heading))
    return title.groups(), unit, [NUMBER.findall(BAR.sub("", row)) for row in table[headings:]]


def test_the_parts_of_a_screen_add_up_to_its_step(asked):
    """Of one GPU from top to bottom, of several in each row."""
    text = as_table.present(overview(asked.opened.report, SHORT), width=80)
    title, unit, rows = first_table(text.splitlines())
    account = asked.opened.whole.account
    sums = [[row[-2] for row in rows]] if len(account.gpus) == 1 else [row[:4] for row in rows if row]
    steps = [rounded(*title)]
    if len(account.gpus) > 1:  # of which each has its rank's step
        steps = [np.array([gpu.total_own_ns / gpu.steps, 0]) for gpu in account.gpus]
    for parts, step in zip(sums, steps, strict=True):
        ns, within_ns = sum(rounded(part, unit) for part in parts) + [-1, 1] * step
        assert abs(ns) <= within_ns * 1.000001
