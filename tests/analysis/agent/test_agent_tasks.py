"""Three tasks worked through as the skill says, by a script, where the right answers are known.

Which range is slowest, what to fix first, did it help: of simulated programs and their changes, and of the tasks
in `evals.json`, whose answers are checked against plain SQL.
"""

import json
from collections import Counter
from functools import partial
from importlib.resources import files

import pytest
from nvtx_kernels.analysis.agent import skill
from nvtx_kernels.analysis.agent.answers import Reports

from tests.analysis.making.checks import said
from tests.analysis.making.plain_sql import OURS, rows, value
from tests.analysis.making.simulated import ELEMENTWISE, FP32_GEMM, TF32_GEMM, US, recorded, step_ns
from tests.analysis.measures.test_fixes import CHANGES, training

FOLDER = files("nvtx_kernels.analysis.agent") / "nvtx-kernels"
TASKS = {task["id"]: task for task in json.loads((FOLDER / "evals" / "evals.json").read_text())}
COMPILED = OURS.with_name("h200_compiled.sqlite")


def reports_of(folder, **programs):
    """Record programs, each into a report of its name."""
    for name, program in programs.items():
        recorded(folder, program).rename(folder / f"{name}.sqlite")
    return Reports(folder)


def slowest(answer):
    """Return the first row of the ranking of ranges, by its columns."""
    table = next(table for table in answer["tables"] if table["key"] == "slowest")
    return dict(zip((column["key"] for column in table["columns"]), table["rows"][0], strict=True))


def layered(machine, parts):
    """Run a step of parts, each of which launches some kernels of some length."""
    with machine.range("forward"):
        for name, (count, lasts) in parts.items():
            with machine.range(name):
                for _ in range(count):
                    machine.work(lasts, ELEMENTWISE)


PARTS = [
    {"many": (200, 4 * US), "long": (2, 300 * US), "launched late": (1, 700 * US)},
    {"many": (100, 4 * US), "long": (2, 300 * US), "launched late": (1, 500 * US)},
    {"many": (100, 4 * US), "long": (2, 300 * US), "launched late": (1, 700 * US)},
]


@pytest.mark.parametrize("parts", PARTS, ids=["many", "long", "late"])
def test_the_slowest_range_is_the_one_with_the_most_kernel_time(parts, tmp_path):
    reports = reports_of(tmp_path, run=partial(layered, parts=parts))
    truth = max(parts, key=lambda name: parts[name][0] * parts[name][1])
    assert slowest(reports.overview("run.sqlite"))["range"].split(" > ")[-1] == truth


def of_cause(name):
    """Return the options of a program whose only cause is this one, and of the changed program."""
    before, after = CHANGES[name]
    return {"gemm": FP32_GEMM if name == "fp32" else TF32_GEMM, **before}, after


@pytest.mark.parametrize("name", CHANGES)
def test_the_planted_cause_is_fixed_first_and_the_change_helps_as_said(name, tmp_path):
    base, changed = (partial(training, **{"gemm": TF32_GEMM} | options) for options in of_cause(name))
    reports = reports_of(tmp_path, before=base, after=changed)
    first = reports.fixes("before.sqlite", unrecorded_step_ms=step_ns(base) / 1e6)["fixes"][0]
    outcome = reports.compare("before.sqlite", "after.sqlite")["outcome"]
    saved = step_ns(base) - step_ns(changed)
    assert (first["rule"], outcome["verdict"]) == (name, "differs")
    assert -outcome["delta_ns"] == pytest.approx(saved, rel=0.02)
    assert -outcome["delta_ns"] <= first["alone_ns"] * 1.02


def test_a_change_that_changes_nothing_did_not_help(tmp_path):
    reports = reports_of(tmp_path, before=training, after=training)
    answer = reports.compare("before.sqlite", "after.sqlite")
    assert answer["outcome"]["verdict"] == "same"
    assert answer["answer"].startswith("Equal within ")


def innermost_ns():
    """Return each range's kernel time per step by thread and name, its own kernels alone, in plain Python."""
    ranges = rows(OURS, "SELECT start, end, thread, name FROM ranges ORDER BY start")
    totals = Counter()
    for ns, called, returned, thread in rows(OURS, "SELECT ns, called, returned, thread FROM kernels"):
        around = [r for r in ranges if r[2] == thread and r[0] <= called and returned <= r[1]]
        totals[thread, around[-1][3] if around else ""] += ns / 2
    return totals


def test_the_task_of_the_slowest_range_has_the_true_answer():
    (thread, name), ns = innermost_ns().most_common(1)[0]
    forward = value(OURS, "SELECT DISTINCT thread FROM ranges WHERE name = 'forward'")
    layers = value(OURS, "SELECT COUNT(DISTINCT name) FROM ranges WHERE name LIKE 'layer %'")
    share = ns * 2 / value(OURS, "SELECT SUM(ns) FROM kernels")
    truth = TASKS["slowest-range"]["ground_truth"]
    assert thread != forward
    expected = (f"{name}s ", "in backward", f"{ns / 1e6:.2f} ms per step", f"all {layers} layers", f"{share:.1%}")
    assert [words for words in expected if words not in truth] == []
    answered = slowest(Reports(OURS.parent).overview(OURS.name))
    assert (answered["range"], answered["backward_ns"]) == (f"layer * > ffn > {name}", ns)


def test_the_task_of_what_to_fix_first_has_the_answer_of_the_tools():
    first, *others = Reports(OURS.parent).fixes(OURS.name)["fixes"]
    gemms = value(OURS, "SELECT COUNT(*) / 2 FROM kernels WHERE name LIKE '%gemm%' AND name NOT LIKE '%splitK%'")
    truth = TASKS["fix-first"]["ground_truth"]
    between = f"up to {first['alone_low_ns'] / 1e6:.0f} to {first['alone_ns'] / 1e6:.0f} ms of a step of"
    expected = ("set_float32_matmul_precision", f"{gemms} GEMMs", between, f"{first['step_ns'] / 1e6:.1f} ms")
    expected += tuple(f"{other['count']:,.0f} kernels" for other in others)
    assert [words for words in expected if words not in truth] == []
    assert [other["rule"] for other in others] == ["optimizer", "compile"]


def test_the_task_of_whether_it_helped_is_not_known():
    answer = Reports(OURS.parent).compare(OURS.name, COMPILED.name)
    outcome, truth = answer["outcome"], TASKS["did-it-help"]["ground_truth"]
    assert outcome["verdict"] == "not known"
    assert truth.startswith("Not known: a step takes")
    assert f"{outcome['a_ns'] / 1e6:.1f} and {outcome['b_ns'] / 1e6:.1f} ms" in truth


def test_the_skill_is_written_with_its_card_and_its_tasks(tmp_path):
    said(skill, "-o", str(tmp_path))
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert written == {f"nvtx-kernels/{name}" for name in ("SKILL.md", "card.yaml", "evals/evals.json")}
    assert (tmp_path / "nvtx-kernels" / "SKILL.md").read_text() == skill.page()
