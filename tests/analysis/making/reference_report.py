"""The sums of a report, added up one piece of work at a time from the reference's answers."""

from collections import Counter, defaultdict

from tests.analysis.making.reference import Reference, in_order
from tests.analysis.making.reference_threads import launch_of


def summed(rows, *, include_warm_up=False, **rules):
    """Return the tables of a report as {table: {key: figures}}."""
    reference = Reference(rows, **rules)
    pairs = list(zip(in_order(rows), reference.answers(), strict=True))
    kept = [(work, answer) for work, answer in pairs if include_warm_up or not answer.in_warm_up]
    parts = dict.fromkeys(("own", "adopted", "linked", "captured", "outside", "ambiguous"), 0)
    of_phase, of_row = defaultdict(list), defaultdict(list)
    for work, answer in kept:
        parts[answer.how] += _duration(work)
        of_phase[answer.phase].append(work)
        of_row[answer.names, answer.phase, work.kind].append(_duration(work))
    work_ns = sum(_duration(work) for work, _ in pairs)
    return {
        "totals": {
            "work_ns": work_ns,
            "kernel_ns": sum(_duration(work) for work, _ in pairs if work.kind == "kernel"),
            "excluded_ns": work_ns - sum(parts.values()),
            **{f"{how}_ns": total for how, total in parts.items()},
        },
        "phases": {
            phase: (kernel_ns, kernels, ns)
            for phase, work in of_phase.items()
            for kernels, kernel_ns, ns in [_amounts(work)]
        },
        "kernels": {key: (len(all_), sum(all_), min(all_), max(all_)) for key, all_ in of_row.items()},
        "outside": Counter((a.how, work.kind) for work, a in kept if a.how in ("outside", "ambiguous")),
        "ranges": _ranges(reference, pairs, kept, _homes(reference, include_warm_up)),
    }


def _duration(work):
    return work.end - work.start


def _homes(reference, include_warm_up):
    """Return the path of every range that is shown."""
    homes = [reference.home(r) for r in reference.users]
    return [home for home in homes if include_warm_up or not any(r.is_called("warmup") for r in home)]


def steps(rows, *, include_warm_up):
    """Count the outermost ranges `step` whose end was not lost, of threads that do not only copy."""
    reference = Reference(rows, operators="hide")
    calls = [(launch_of(rows, work), work.kind) for work in rows.work]
    working = {call.thread for call, _ in calls if call}
    copying = working - {call.thread for call, kind in calls if call and kind in ("kernel", "graph")}
    homes = [reference.home(r) for r in reference.users if r.is_called("step") and r.thread not in copying]
    inside = [(home[-1], outer) for home in homes for outer in home[:-1] if outer in {h[-1] for h in homes}]
    lost = {outer for inner, outer in inside if _number(inner) > _number(outer)} | _with_their_like(homes)
    steps = {home[-1] for home in homes} - lost
    counted = [home for home in _homes(reference, include_warm_up) if home[-1] in steps]
    return sum(not steps & {*home[:-1]} for home in counted)


def _with_their_like(homes):
    """Return the steps right around others of their own name: the open ones, and all unless most do so."""
    steps = {home[-1] for home in homes}
    around = {home[-1]: next((r for r in reversed(home[:-1]) if r in steps), None) for home in homes}
    inner = {step for step, outer in around.items() if outer and outer.name == step.name}
    containing = {around[step] for step in inner}
    outermost = Counter(step.name for step in steps - inner)
    usual = Counter(step.name for step in containing - inner)
    is_usual = {name for name, count in usual.items() if count > 1 and 2 * count > outermost[name]}
    return {step for step in containing if step.is_open or step.name not in is_usual}


def _number(range_):
    return int(range_.name.split()[-1])


def _key(reference, path, answer=None):
    """Return the row that a path is shown in: its names and its phase."""
    places = (answer.led, answer.captured) if answer else ()
    return tuple(r.name for r in path), reference.phase_of(path, *places) or "other"


def _ranges(reference, pairs, kept, homes):
    """Return per row: instances, kernels, self kernels, their times, work times, span and CPU time."""
    led = {
        _key(reference, answer.path[: place + 1], answer)
        for _, answer in pairs
        for place in (*answer.led, *answer.captured)
    }
    inside, direct, of_instance = defaultdict(list), defaultdict(list), defaultdict(list)
    for work, answer in kept:
        for depth in range(1, len(answer.path) + 1):
            row = _key(reference, answer.path[:depth], answer)
            inside[row].append(work)
            of_instance[row, answer.path[depth - 1]].append(work)
        direct[row if answer.path else None].append(work)
    spans, cpu = Counter(), defaultdict(list)
    for (row, _), work in of_instance.items():
        spans[row] += max(w.end for w in work) - min(w.start for w in work)
    for home in homes:
        cpu[_key(reference, home)].append(home[-1].end - home[-1].start)
    return {
        row: (
            len(cpu[row]) or None, *_amounts(inside[row]), *_amounts(direct[row]),
            None if row in led or not inside[row] else spans[row], sum(cpu[row]) if cpu[row] else None,
        )
        for row in {*inside, *cpu}
    }  # fmt: skip


def _amounts(work):
    kernels = [_duration(w) for w in work if w.kind == "kernel"]
    return len(kernels), sum(kernels), sum(map(_duration, work))


def tables(report):
    """Return a `Report` in the same form."""
    outside = Counter()
    for o in report.outside:
        outside["ambiguous" if "two threads" in o.reason else "outside", o.kind] += o.count
    return {
        "totals": {name: getattr(report.totals, name) for name in report.totals.__slots__},
        "phases": {p.phase: (p.kernel_ns, p.kernels, p.work_ns) for p in report.phases},
        "kernels": {(k.path, k.phase, k.kind): (k.count, k.total_ns, k.min_ns, k.max_ns) for k in report.kernels},
        "outside": outside,
        "ranges": {
            (r.path, r.phase): (
                r.instances, r.kernels, r.inclusive_ns, r.inclusive_work_ns, r.self_kernels, r.self_ns,
                r.self_work_ns, r.span_ns, r.cpu_ns,
            )
            for r in report.ranges
        },
    }  # fmt: skip
