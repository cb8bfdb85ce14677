"""On a CPU, `view fix` names the mistake of a recorded program, and nothing where there is none."""

from functools import partial
from pathlib import Path

import pytest
import torch
from nvtx_kernels.analysis.measures.cpu_rules import CPU_RULES
from nvtx_kernels.analysis.measures.fix_list import CPU
from nvtx_kernels.analysis.opened import opened
from nvtx_kernels.analysis.report.account import IDLE

import nvtx_kernels as nk
from tests.analysis.making.building import alter
from tests.profiling.making.cpu_mistakes import HARMLESS, PROGRAMS, freezing

DOCS = Path(__file__).parents[2] / "docs" / "fix_first.md"


def fixes_of(path, program, *, gives_optimizer=True):
    """Record some steps of a program, and return what to change first in it."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model, optimizer, step = program()
    with nk.profile(model, optimizer if gives_optimizer else None, path, warmup=1, steps=5):
        for _ in range(6):
            step()
    torch.set_num_threads(threads)
    return nk.rank(path).fixes


@pytest.mark.parametrize("rule", PROGRAMS)
def test_a_mistake_is_named_first(path, rule):
    found = fixes_of(path, PROGRAMS[rule])
    assert found.kind == CPU
    assert found.fixes[0].rule == rule
    assert 0.1 * found.step_ns <= found.fixes[0].alone_ns <= found.step_ns
    assert found.fixes[0].then_ns is None


def test_gradients_for_nothing_are_named_where_one_operator_updates_all(path):
    assert fixes_of(path, partial(freezing, False, fused=True)).fixes[0].rule == "untrained"


@pytest.mark.parametrize("case", HARMLESS)
def test_a_program_without_the_mistake_has_no_such_row(path, case):
    found = fixes_of(path, HARMLESS[case])
    assert found.kind == CPU
    assert case.partition(":")[0] not in {fix.rule for fix in found.fixes}


def test_every_rule_has_a_program_and_near_misses_and_its_row_in_the_docs():
    text = DOCS.read_text()
    assert list(PROGRAMS) == [rule.name for rule in CPU_RULES]
    assert {case.partition(":")[0] for case in HARMLESS} == {rule.name for rule in CPU_RULES}
    for rule in CPU_RULES:
        assert f"| `{rule.name}` | {rule.condition} | {rule.figure} | {rule.near_miss} |" in text


def test_the_optimizer_is_called_by_its_class(path):
    sentence = fixes_of(path, PROGRAMS["optimizer"]).fixes[0].sentence
    assert sentence.endswith("operators: AdamW(fused=True)")


def test_without_steps_what_must_be_counted_in_them_is_not_judged(path):
    model, _, _ = PROGRAMS["attention"]()

    def run():
        model(torch.randn(4, 384, 32)).sum().backward()

    run()  # what PyTorch does once is no part of it
    with nk.record(path, device="cpu"):
        for _ in range(6):
            run()
    found = nk.rank(path).fixes
    assert (found.per, found.fixes[0].rule) == ("recording", "attention")
    assert sum("the report has no steps" in reason for reason in found.unjudged) == 3


@pytest.mark.parametrize(("workers", "advice"), [(False, "num_workers=…"), (True, "the DataLoader has workers")])
def test_the_advice_is_for_the_loader_that_the_program_has(path, workers, advice):
    fixes_of(path, PROGRAMS["loader"])
    if workers:
        new = "replace(value, '_SingleProcess', '_MultiProcessing')"
        alter(path, f"UPDATE names SET value = {new} WHERE value LIKE '%DataLoader%'")
    fix = nk.rank(path).fixes.fixes[0]
    assert (fix.rule, advice in fix.sentence) == ("loader", True)


def test_a_fused_optimizer_saves_its_operators_and_the_python_between_them(path):
    fix = next(fix for fix in fixes_of(path, PROGRAMS["optimizer"]).fixes if fix.rule == "optimizer")
    rows = [row for row in opened(path).whole.account.rows if row.counted]

    def mean_ns(is_meant):
        return sum(ns for row in rows for state, ns in row.states_ns if is_meant(*state)) / len(rows)

    operators_ns = mean_ns(lambda kind, what: what == "optimizer")
    outside_ns = mean_ns(lambda kind, what: kind == IDLE)
    assert operators_ns < fix.alone_ns <= 1.001 * (operators_ns + outside_ns)
