"""The attribution against a slow one that is obviously right, on thousands of generated reports.

Set NVTX_KERNELS_EXAMPLES to look at more, or fewer, than the default.
"""

import os
import re
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from nvtx_kernels.analysis.attribution.causes import Rules, attribute
from nvtx_kernels.analysis.attribution.steps import measured_steps
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.summary.totals import summarize

from tests.analysis.making import reference_report
from tests.analysis.making.building import Dialect, write
from tests.analysis.making.generated import Program, chaos, programs
from tests.analysis.making.reference import Reference
from tests.analysis.making.traces import answers, trace_of

# CI tries more examples than a run of the tests by hand.
EXAMPLES = int(os.environ.get("NVTX_KERNELS_EXAMPLES", "400" if os.environ.get("CI") else "200"))
NO_CHECKS = (HealthCheck.too_slow, HealthCheck.function_scoped_fixture)


def examples(share):
    return settings(max_examples=max(1, round(EXAMPLES * share)), suppress_health_check=NO_CHECKS)


HOW = ("own", "adopted", "linked", "captured", "outside", "ambiguous")
REPORTS = {"chaos": chaos(), "programs": programs}
RULES = st.sampled_from(
    [
        {"operators": "hide"},
        {"adopt": False},
        {"link": False},
        {"operators": "keep", "link": False},
        {"operators": "keep", "link": False, "adopt": False},  # what nsys does, but for libraries' domains
    ]
)


def found(attribution):
    """Return the answers, and of which work no forward operator fits its backward node."""
    return [*zip(answers(attribution), attribution.unfit.tolist(), strict=True)]


def expected(rows, **rules):
    wanted = Reference(rows, **rules).answers()
    return [((answer.how, answer.names, answer.phase), answer.unfit) for answer in wanted]


def has_work(rows):
    """Tell whether a report has work: without any, it is refused before it is added up."""
    return bool(rows.work)


def with_fewer_names(rows):
    """Let ranges share names, as real ones do."""

    def shared(name):
        return re.sub(r"^([a-z]+ )(\d+)$", lambda match: match[1] + str(int(match[2]) % 3), name)

    return replace(rows, ranges=[replace(r, name=shared(r.name)) for r in rows.ranges])


@examples(1)
@given(chaos())
def test_anything_anywhere_goes_where_the_definitions_say(rows):
    assert found(attribute(trace_of(rows))) == expected(rows)


def test_programs_go_where_the_definitions_say():
    seen = Counter()

    @examples(1.5)
    @given(programs)
    @example(Program(255789).run())  # an engine's range that never closed, and another that began with it
    def check(rows):
        wanted = expected(rows)
        assert found(attribute(trace_of(rows))) == wanted
        seen.update(how for (how, _, _), _ in wanted)

    check()
    assert EXAMPLES < 200 or all(seen[how] > 10 for how in HOW), seen


@examples(0.5)
@given(programs, RULES)
def test_each_rule_can_be_switched_off(rows, rules):
    assert found(attribute(trace_of(rows), Rules(**rules))) == expected(rows, **rules)


@pytest.mark.parametrize("kind", REPORTS)
def test_sums_of_a_report_are_those_of_its_work_and_conserve(kind):
    @examples(0.25)
    @given(REPORTS[kind].filter(has_work).map(with_fewer_names), st.booleans())
    @example(with_fewer_names(Program(1199).run()), False)  # a path in one phase, below a path in two
    @example(with_fewer_names(Program(1559).run()), False)
    def check(rows, include_warm_up):
        attribution = attribute(trace_of(rows), Rules(operators="hide", evidence=()))
        steps = measured_steps(attribution, include_warm_up=include_warm_up)
        assert len(steps) == reference_report.steps(rows, include_warm_up=include_warm_up)
        report = summarize(attribution, include_warm_up=include_warm_up)
        assert reference_report.tables(report) == reference_report.summed(
            rows, operators="hide", include_warm_up=include_warm_up
        )
        assert conserves(report)

    check()


def conserves(report):
    """Tell whether the parts of the totals, and the ranges' own work and the rest, are all of the work."""
    totals = report.totals
    rest = totals.outside_ns + totals.ambiguous_ns + totals.excluded_ns
    parts = totals.own_ns + totals.adopted_ns + totals.linked_ns + totals.captured_ns + rest
    return totals.work_ns == parts == sum(row.self_work_ns for row in report.ranges) + rest


@examples(0.25)
@given(
    rows=st.one_of(chaos(), programs),
    year=st.sampled_from([2020, 2022, 2024, 2026]),
    registered=st.sampled_from(["none", "all", "mixed"]),
    empty_tables=st.booleans(),
)
def test_files_say_the_same_as_the_rows_they_hold(tmp_path, rows, year, registered, empty_tables):
    report = write(tmp_path / "report.sqlite", rows, Dialect(year, registered, empty_tables))
    attribution = attribute(read(report))
    assert found(attribution) == expected(rows)
    assert not has_work(rows) or conserves(summarize(attribution))
