"""What to change first on a CPU, by the operators that were counted: `cpu_rules` has the rules."""

from __future__ import annotations

from ..account import Partition
from .cpu_rules import CPU_RULES, CpuRule, CpuSymptom
from .cpu_subject import CpuSubject
from .fix_list import CPU, Fix, Fixes, Silent
from .symptoms import Unjudged

#: A change that concerns less of a step is not shown: figures are about.
LEAST_SHARE_OF_CPU = 0.1
ON_CPU = "the report is of a CPU, whose operators are counted"
NO_STEPS = "{}: the report has no steps to count them in"


def cpu_fixes(partition: Partition) -> Fixes:
    """Return the changes of a program on a CPU, those that concern the most time of a step first."""
    subject = CpuSubject(partition)
    step_ns = subject.step_ns
    unjudged = list[str]()
    symptoms: list[tuple[CpuRule, CpuSymptom]] = []
    for rule in CPU_RULES:
        if rule.needs_steps and not subject.has_steps:
            unjudged.append(NO_STEPS.format(rule.called))
            continue
        for answer in rule.find(subject):
            if isinstance(answer, Unjudged):
                unjudged.append(answer.reason)
            else:
                symptoms.append((rule, answer))
    symptoms.sort(key=lambda pair: -pair[1].about_ns)
    rows = [_fix(rule, symptom, step_ns) for rule, symptom in symptoms]
    listed = [row for row in rows if row.alone_ns >= LEAST_SHARE_OF_CPU * step_ns > 0]
    called = {rule.name: rule.called for rule in CPU_RULES}
    quiet = [Silent(row.rule, called[row.rule], row.alone_ns, row.alone_ns) for row in rows if row not in listed]
    return Fixes(
        fixes=tuple(listed),
        silent=tuple(quiet),
        unjudged=tuple(unjudged),
        kind=CPU,
        reason=ON_CPU,
        per=partition.per,
        step_ns=step_ns,
        recorded_step_ns=step_ns,
        steps=subject.steps,
    )


def _fix(rule: CpuRule, symptom: CpuSymptom, step_ns: float) -> Fix:
    """Return the row of a symptom, whose time is at most the step's."""
    about_ns = min(symptom.about_ns, step_ns)
    return Fix(
        rule=rule.name,
        sentence=rule.sentence.format(**symptom.words),
        short=rule.short.format(**symptom.words),
        where=symptom.where,
        most=next(iter(symptom.where), ()),
        count=symptom.count,
        alone_ns=about_ns,
        alone_low_ns=about_ns,
        then_ns=None,
        step_ns=step_ns,
        up_to=False,
        evidence={"kernels_ns": about_ns, "floor_ns": 0.0, "calls": symptom.count},
        lines=symptom.lines,
    )
