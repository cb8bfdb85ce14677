"""The answer in two or three sentences, by one template for each situation; `facts` has what they say."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from ..report import Number, Path, Report
from ..report.account import COMMUNICATION, COMPUTE, COPY, IDLE, OPERATORS, Cause, Difference, Outlying, Pause
from ..report.recording import Recording
from ..support.text import capitalized, ending, fit
from ..support.units import counted, ordinal, time_in_digits, time_range
from ..vocabulary import OTHER, PHASES, step_matcher
from ..vocabulary.loading import iterates
from . import graphs, headings
from .account import CAUSES, called
from .facts import ALIKE, COMPUTING, SAID_FROM, Facts, GpuFacts, doing_of, facts_of, subject_of
from .rows import count_of, kernels_of, label, time_of

UNRECORDED_GPU = "The GPU's work was not recorded: what follows is CPU time."
NOTHING_OF_ITS_OWN = "No step has time of its own: all its work ran while other work did."
#: The share of the work, or of a phase's, from which the answer says what lies in no step, and that of a step's
#: time from which it says what was taken out of steps.
MUCH_OUTSIDE = MUCH_TAKEN_OUT = 0.1
#: A part of a step with less than this share is one of the others, which are mentioned from the second share on.
SMALL, SOME = 0.05, 0.02
#: By how much a GPU's busy share without recording differs at least, if it is mentioned.
BUSIER = 0.05
#: With such a share, little idle time is left without recording.
IDLE_ALONE = 0.1
LONGEST_FUNCTION, LONGEST_PATH = 80, 60
#: How a sentence says what a GPU does, where the word alone says too little.
DOES = {COMMUNICATION: "communication that nothing hides", OPERATORS: "in operators"}


def verdict(report: Report) -> str:
    """Return the sentences; empty if nothing ran."""
    if headings.is_of_ranges(report):
        return _of_ranges(report)
    if report.account and report.account.phases:
        return _of_phases(report)
    facts = facts_of(report)
    if facts is None or not report.kernels:
        return _without_parts(report)
    sentences = [UNRECORDED_GPU] if report.provenance.gpu_operator else []
    sentences += _of_gpus(facts) if len(facts.gpus) > 1 else _of_one(facts)
    sentences += _unrecorded(facts)
    sentences += _of_pause(facts.pause) if facts.pause else _why_idle(facts, report)
    sentences += [*_about_steps(facts), *_generation(report), *_left_out(report), *_taken_out(report)]
    unknown = headings.share_of_other(report)
    if unknown > headings.MUCH_OTHER:
        time = headings.kernel_time_in_text(report)
        kernels = headings.worded("kernels", report.provenance)
        sentences.append(f"{_percent(unknown, 1)} of the {time} is in {kernels} of unknown category.")
    return " ".join(sentences)


def _without_parts(report: Report) -> str:
    """Return how long a step takes whose parts are not known, as of a summary of version 1; "" if nothing ran."""
    account = report.account
    if account is None or not report.kernels:
        return ""
    if not account.recorded_ns:
        return NOTHING_OF_ITS_OWN
    return f"{subject_of(report, account)} takes {time_in_digits(account.recorded_ns)} while recorded."


def _takes(facts: Facts) -> str:
    """Return how long a step takes, while recorded and without recording."""
    if not facts.has_steps:
        return f"The recorded work takes {time_in_digits(facts.time_ns)}"
    takes, cost = f"{facts.subject} takes {time_in_digits(facts.time_ns)}", facts.recording
    if cost and cost.alone_ns and _idle_alone(facts) is None:
        without = "; ".join(filter(None, (f"{_alone(cost)} without", _single_steps(cost))))
        return f"{takes} while recorded ({without})"
    return takes if facts.on_cpu else f"{takes} while recorded"


def _alone(cost: Recording) -> str:
    """Return the time of a step without recording, which is known."""
    alone = time_in_digits(cost.alone_ns or 0)
    if cost.is_upper_limit:
        return f"at most {alone}"
    return f"{'about ' if cost.steps == 1 else ''}{alone}"


def _single_steps(cost: Recording) -> str:
    """Return the times of single steps without recording, where they vary; else ""."""
    if cost.is_upper_limit or not cost.varies:
        return ""
    return f"single steps {time_range(cost.unrecorded_low_ns or 0, cost.unrecorded_high_ns or 0)}"


def _of_one(facts: Facts) -> Iterator[str]:
    """Yield how the time of a step is divided on its only GPU, the largest part first."""
    (gpu,) = facts.gpus
    told = {
        doing: ns
        for doing, ns in gpu.times.items()
        if ns >= SMALL * facts.time_ns or doing in (COMPUTING, OPERATORS)
    }
    does = {doing: _doing(doing, facts.on_cpu) for doing in told}
    if next(iter(told)) == OPERATORS:
        does[IDLE] = "outside of them"
    parts = [f"{_part(ns, facts.time_ns)} {does[doing]}" for doing, ns in told.items()]
    rest_ns = facts.time_ns - sum(told.values())
    parts += [f"{time_in_digits(rest_ns)} the rest"] if rest_ns > SOME * facts.time_ns else []
    yield f"{_takes(facts)}: {', '.join(parts)}."


def _doing(doing: str, on_cpu: bool) -> str:
    if doing == IDLE and on_cpu:
        return "outside of operators"
    return DOES.get(doing, doing)


def _of_gpus(facts: Facts) -> Iterator[str]:
    """Yield how long several GPUs do each thing in a step: all of them where they are alike, else the longest."""
    several = "CPUs" if facts.on_cpu else "GPUs"
    does = {COMPUTING: "computes for", OPERATORS: "runs operators for"}
    does |= {COMMUNICATION: "communicates or waits for", IDLE: "is idle for"}
    parts = []
    for doing, words in does.items():
        least, most = facts.range_of(doing)
        low_ns, high_ns = least.time_ns(doing), most.time_ns(doing)
        if high_ns < SMALL * facts.time_ns:
            continue
        if high_ns - low_ns <= ALIKE * facts.time_ns:
            shares = sorted((low_ns / least.step_ns, high_ns / most.step_ns))
            parts.append(f"each {words} {time_range(low_ns, high_ns)} ({_percents(*shares)})")
        else:
            parts.append(f"{most.name} {words} {_part(high_ns, most.step_ns)}")
    yield f"{_takes(facts)} on {len(facts.gpus)} {several}: {', '.join(parts)}."


def _unrecorded(facts: Facts) -> Iterator[str]:
    """Yield how long a step takes without recording, and for how much of it a GPU is idle, where that is less."""
    share, cost = _idle_alone(facts), facts.recording
    if share is None or cost is None:
        return
    idle = f"{'at most ' * cost.is_upper_limit}{_percent(share, 1)} of it idle"
    ends = ": recording adds most of the idle time" if share <= IDLE_ALONE else ""
    single = _single_steps(cost)
    yield f"Without recording, it takes {_alone(cost)}{f' ({single})' * bool(single)}, {idle}{ends}."


def _idle_alone(facts: Facts) -> float | None:
    """Return for which share of the step a GPU is idle without recording, where that is less than with it."""
    cost = facts.recording
    if cost is None or cost.alone_busy_share is None or cost.busy_ns is None:
        return None
    is_busier = cost.alone_busy_share - cost.busy_ns / facts.time_ns > BUSIER
    return 1 - cost.alone_busy_share if is_busier else None


def _why_idle(facts: Facts, report: Report) -> Iterator[str]:
    """Yield the main cause of idle time of the GPU that has most of it."""
    gpu = facts.most_idle
    if gpu.time_ns(IDLE) < SAID_FROM * facts.time_ns or not gpu.causes:
        return
    alone = _idle_alone(facts)
    if alone is not None and alone <= IDLE_ALONE:  # recording adds most of it
        return
    if facts.on_cpu:
        yield _outside_operators(gpu, report)
        return
    cause = gpu.causes[0]
    who = gpu.name if len(facts.gpus) > 1 else "the GPU"
    when = capitalized(who) if alone is None else f"In recorded steps, {who}"
    inside = ", ".join([time_in_digits(cause.total_ns / gpu.steps), *place(cause, report)])
    yield f"{when} is idle mostly while {CAUSES[cause.cause][1]} ({inside})."


def _outside_operators(gpu: GpuFacts, report: Report) -> str:
    """Describe a program's time on a CPU outside of operators: causes with a tenth of that or more."""
    idle_ns = sum(cause.total_ns for cause in gpu.causes)
    said = [cause for cause in gpu.causes if cause.total_ns >= SAID_FROM * idle_ns]
    parts = []
    for cause in said:
        where = place(cause, report)
        inside = f" ({', '.join(where)})" if where else ""
        parts.append(f"{time_in_digits(cause.total_ns / gpu.steps)} while {CAUSES[cause.cause][1]}{inside}")
    return f"Outside of operators: {', '.join(parts)}."


def place(cause: Cause, report: Report) -> list[str]:
    """Return where most of a cause is, by range, function or line and after which call, as parts of a sentence."""
    is_step = step_matcher(report.step)
    inner = max((depth for depth, name in enumerate(cause.path, 1) if is_step(name.replace("*", "0"))), default=0)
    below = cause.path[inner:]
    inside = label(below) if below and not iterates(below[-1]) else ""
    parts = [f"most in {ending(inside, LONGEST_PATH)}"] if inside else []
    parts += [f"{'in' if parts else 'most in'} {fit(cause.function, LONGEST_FUNCTION)}"] if cause.function else []
    line = "" if cause.function else fit(cause.line, LONGEST_FUNCTION)
    parts += [f"{'at' if parts else 'most at'} {line}"] if line else []
    return [*parts, cause.after_wait] if cause.after else parts


def _about_steps(facts: Facts) -> Iterator[str]:
    """Yield by what steps are known, which of them do not count, and how those that count differ."""
    yield from facts.evidence
    if not facts.has_steps:
        return
    more = partial(_more, on_cpu=facts.on_cpu)
    if facts.rhythm:
        rhythm = facts.rhythm
        apart, others = time_in_digits(rhythm.apart_ns), time_in_digits(rhythm.others_ns)
        yield (
            f"Every {ordinal(rhythm.every)} of {facts.counted} steps takes {apart} ({more(rhythm.more)}), the "
            f"others {others}: figures are means over both."
        )
    elif facts.varying:
        longer = facts.varying.longer
        middle = time_in_digits((facts.low_ns + facts.high_ns) / 2)
        longest = f"the {longer} above {middle} have" if longer > 1 else "the longest has"
        yield (
            f"The {facts.counted} steps take {time_range(facts.low_ns, facts.high_ns)}; {longest} "
            f"{more(facts.varying.more)}. Figures are means."
        )
    elif facts.outlying:
        them = "it" if len(facts.outlying) == 1 else "them"
        all_of_them = time_in_digits(facts.all_step_ns)
        not_counted = "; ".join(_not_counted(facts.outlying, more))
        yield f"Not counted: {not_counted}. With {them}, {all_of_them} on average."
    if facts.dropped:
        have = "has" if facts.dropped == 1 else "have"
        are = "is" if facts.dropped == 1 else "are"
        of = facts.steps + facts.dropped
        yield f"{facts.dropped} of {of} steps {have} no recorded work, and {are} left out."


def _not_counted(outlying: Sequence[Outlying], more: Callable[[Difference], str]) -> Iterator[str]:
    """Yield the steps that do not count, those with more of the same thing together, of at most two things."""
    groups: dict[tuple[str, bool], list[Outlying]] = {}
    for row in outlying:
        groups.setdefault((row.more.what, row.more.ns > 0), []).append(row)
    for rows in sorted(groups.values(), key=len, reverse=True)[:2]:
        numbers = ", ".join(str(row.step) for row in rows[:4]) + ("…" if len(rows) > 4 else "")
        own_ns = [row.own_ns for row in rows]
        took = time_range(min(own_ns), max(own_ns))
        yield f"{'steps' if len(rows) > 1 else 'step'} {numbers} took {took} ({more(rows[0].more)})"


def _more(more: Difference, *, on_cpu: bool) -> str:
    """Describe how some steps differ: `more time in GEMM kernels`, `less idle time: launching kernels`."""
    category = headings.category(more.what)
    works = {COMPUTE: f"{category} kernels", OPERATORS: f"{category} operators", COPY: f"copies {more.what}"}
    differ = f"time in {works.get(more.kind, more.what)}"
    if more.kind == IDLE:
        differ = f"{'time outside of operators' if on_cpu else 'idle time'}: {called(more.what)}"
    return f"{'more' if more.ns >= 0 else 'less'} {differ}"


def _of_pause(pause: Pause) -> Iterator[str]:
    """Yield where one long gap is in a report without steps, and how busy the GPU is without it."""
    between = _between(pause.before, pause.after)
    yield (
        f"{time_in_digits(pause.duration_ns)} is one pause, {between} {time_in_digits(pause.start_ns)} after the "
        "first work."
    )
    if pause.rest_ns <= 0:
        return
    busy = f"Without it the GPU is busy {_percent(pause.rest_ns - pause.rest_idle_ns, pause.rest_ns)} of "
    busy += time_in_digits(pause.rest_ns)
    if pause.rest_idle_ns >= SAID_FROM * pause.rest_ns and pause.rest_cause_ns > 0:
        busy += f", and idle mostly while {CAUSES[pause.rest_cause][1]} ({time_in_digits(pause.rest_cause_ns)})"
    yield f"{busy}."


def _between(before: Path, after: Path) -> str:
    names = [str(label(path)) if path else "work outside all ranges" for path in (before, after)]
    if names[0] == names[1]:
        return f"between two pieces of work in {names[0]}," if before else "between work outside all ranges,"
    return f"between {names[0]} and {names[1]},"


def _generation(report: Report) -> Iterator[str]:
    """Yield how long prefill and decode take, of a step that generates."""
    account = report.account
    if account is None or not account.has_steps:
        return
    prefill_ns, decode_ns, calls = map(account.generation, ("prefill_ns", "decode_ns", "decode_calls"))
    if prefill_ns is None or decode_ns is None or not calls:
        return
    tokens, token_ns = account.generation("tokens"), account.token_ns
    each = f"{time_in_digits(decode_ns / calls)} a call ({counted(calls, 'call')} of several tokens)"
    if tokens and token_ns is not None:
        each = f"{time_in_digits(token_ns)} a token ({counted(tokens, 'token')})"
    yield f"Prefill takes {time_in_digits(prefill_ns)}, decode {time_in_digits(decode_ns)}: {each}."


def _left_out(report: Report) -> Iterator[str]:
    """Yield how much work between the steps is in none of them, if it is much."""
    outside = [
        f"{time_in_digits(outside_ns)} of the {time_in_digits(total_ns)} of "
        f"{phase or f'all {report.provenance.unit_of_work}'} work"
        for phase, outside_ns, total_ns in report.unaccounted
        if report.per_step and phase != OTHER and outside_ns > MUCH_OUTSIDE * total_ns
    ]
    if outside:
        yield f"In no step, so left out: {', '.join(outside)}."


def _taken_out(report: Report) -> Iterator[str]:
    """Yield the time taken out of the steps, if it is much."""
    account = report.account
    taken_out_ns = account.taken_out_ns if account and account.has_steps else {}
    if account and sum(taken_out_ns.values()) > MUCH_TAKEN_OUT * account.recorded_ns:
        parts = ", ".join(f"{time_in_digits(ns)} of {name}" for name, ns in taken_out_ns.items())
        yield f"Not part of the steps' time: {parts}."


def _of_phases(report: Report) -> str:
    """Return how long some phases take in a step, and what they do."""
    account = report.account
    assert account is not None
    if not account.gpus or not account.recorded_ns:
        return ""
    per = "a step" if account.has_steps else "the recorded time"
    gpu = max(account.gpus, key=lambda gpu: gpu.total_ns())
    names = [headings.phase(phase) for phase in account.phases]
    takes = f"{' and '.join(names).capitalize()} take{'s' * (len(names) == 1)}"
    times_ns = {doing: ns / max(gpu.steps, 1) for doing, ns in gpu.by(doing_of).items()}
    total_ns = sum(times_ns.values())
    parts = ", ".join(f"{_part(ns, total_ns)} {_doing(doing, account.on_cpu)}" for doing, ns in times_ns.items())
    on_gpu = f" on {gpu.gpu}" if len(account.gpus) > 1 else ""
    return f"{takes} {_part(total_ns, account.recorded_ns)} of {per}{on_gpu}: {parts}."


def _of_ranges(report: Report) -> str:
    """Return how long the kernels of some ranges take, by phase, and which share is GEMM."""
    with_graphs = graphs.counted(report)
    kernels = kernels_of(with_graphs)
    kernel_ns = time_of(kernels)
    if not kernel_ns:
        return _without_kernels(report)
    times = {phase: time_of(row for row in kernels if row.phase == phase) for phase in PHASES}
    phases = sorted((phase for phase in PHASES if times[phase]), key=lambda phase: -times[phase])
    parts = [f"{headings.phase(phase)} {_percent(times[phase], kernel_ns)}" for phase in phases]
    gemm = _gemm(report, kernel_ns)
    shares = "; ".join([", ".join(parts), gemm] if len(phases) > 1 else [gemm])
    on_cpu = report.provenance.unit_of_work == "CPU"
    time = "self CPU time of operators" if on_cpu else graphs.counted_time(report)
    return f"The ranges asked for take {time_in_digits(kernel_ns)} of {time}{_over(report)}: {shares}."


def _over(report: Report) -> str:
    """Return the scope of figures, as the end of a sentence's part."""
    if report.per_step:
        return " in a rank's step" if report.ranks > 1 else " in a step"
    over = headings.scope(report)
    return "" if over == "total" else f" {over}"


def _without_kernels(report: Report) -> str:
    """Return a sentence on the work of ranges without kernels; empty without work."""
    parts = [
        f"{counted(count_of(rows), *headings.KINDS_OF_WORK[kind])} ({time_in_digits(time_of(rows))})"
        for kind in ("memcpy", "memset")
        if (rows := [row for row in report.kernels if row.kind == kind])
    ]
    return f"No kernels ran{_over(report)}: the work is {' and '.join(parts)}." if parts else ""


def _gemm(report: Report, kernel_ns: Number) -> str:
    """Return which share of the kernels' time is GEMM, or in graphs that hide their kernels."""
    if graph_ns := time_of(graphs.of_graphs(report)):
        return f"{_percent(graph_ns, kernel_ns)} is in CUDA graphs launched whole"
    gemm_ns = time_of(row for row in report.kernels if row.category == "gemm")
    none = "none is known to be" if headings.share_of_other(report) > headings.MUCH_OTHER else "none is"
    return f"{_percent(gemm_ns, kernel_ns)} is GEMM" if gemm_ns else f"{none} GEMM"


def is_idle(report: Report) -> bool:
    """Return whether a GPU is idle for so much of a step that the answer says why."""
    facts = facts_of(report)
    return facts is not None and facts.most_idle.time_ns(IDLE) >= SAID_FROM * facts.time_ns


def next_view(report: Report) -> str:
    """Return the name of the view to ask for next."""
    return "idle" if is_idle(report) else "steps" if report.steps > 1 else "kernels"


def commands(report: Report, target: str, *, program: str = "") -> tuple[str, ...]:
    """Return the commands to run next; `target` is the report's path and options, `program` a script to try in."""
    views = dict.fromkeys((next_view(report), "kernels", "fix"))
    measured = (f"nvtx-kernels try {shlex.quote(program)} measures the changes",) if program else ()
    return (f"nvtx-kernels open {target}", _in_its_place(views), *measured)


def commands_of_job(target: str) -> tuple[str, ...]:
    """Return the commands to run next on the reports of a job's ranks, which are `target` with their options."""
    return f"nvtx-kernels open {target}", _in_its_place(("fix", "communication"))


def _in_its_place(views: Iterable[str]) -> str:
    *others, last = (f"view {name}" for name in views)
    return f"in place of `open`: {', '.join(others)} or {last}" if others else f"in place of `open`: {last}"


def _part(part_ns: float, total_ns: float) -> str:
    return f"{time_in_digits(part_ns)} ({_percent(part_ns, total_ns)})"


def _percents(least: float, most: float) -> str:
    """Return two shares as a range of percentages, of one if they read alike."""
    low, high = _percent(least, 1), _percent(most, 1)
    return high if low == high else f"{low.removesuffix('%')}–{high}"


def _percent(part: Number, total: Number) -> str:
    """Return a share as a percentage; only 0 is shown as 0%, and only 1 as 100%."""
    share = part / total if total else 0
    if 0 < share < 0.005:
        return "<1%"
    return ">99%" if 0.995 <= share < 1 else f"{share:.0%}"
