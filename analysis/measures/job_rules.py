"""What to change first in a job of ranks: the rules, and the changes that save the most by them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..report import Report
from ..support.units import count_text, counted, time_in_digits
from ..trace import Bools, Path
from .fix_list import LEAST_SHARE, RANKS, Fix, Fixes, Silent
from .gpu_peaks import nvlink_bytes_per_s
from .job import Job
from .job_ranks import straggler, uneven_work
from .job_subject import JobRule, JobSubject, JobSymptom
from .rank_evidence import RankEvidence

#: A collective whose transfer is shorter is not of a bucket of gradients, ns.
SHORT_TRANSFER_NS = 30_000
#: In so few steps nothing shows what is in most of them.
FEWEST_STEPS = 2
#: What DDP's look for one unused parameter takes the host: 1.3 to 2.6 µs (reports/h200/several_gpus.md), ns.
LOOK_NS = 2_000.0
#: The CPUs set the pace of a job in which no GPU works for more than this share of a step.
LITTLE_WORK = 0.25
#: Smaller messages do not fill a link, bytes; a link that carries at most this share of NVLink's rate is none.
FILLS_LINK, NOT_NVLINK = 1 << 20, 0.1


def job_fixes(job: Job, reports: Sequence[tuple[str, Report, RankEvidence]]) -> Fixes:
    """Return the changes that save a job the most, and those that save too little to be shown."""
    subject = JobSubject(job, tuple(report for _, report, _ in reports), tuple(each for *_, each in reports))
    answers = [(rule, symptom) for rule in JOB_RULES for symptom in rule.find(subject)]
    answers.sort(key=lambda answer: -answer[1].likely_ns)
    least_ns = LEAST_SHARE * subject.step_ns
    listed = [answer for answer in answers if answer[1].likely_ns >= least_ns]
    others = [answer for answer in answers if answer[1].likely_ns < least_ns]
    return Fixes(
        fixes=tuple(_fix(rule, symptom, subject.step_ns) for rule, symptom in listed),
        silent=tuple(Silent(rule.name, rule.called, each.high_ns, each.low_ns) for rule, each in others),
        kind=RANKS,
        step_ns=subject.step_ns,
        is_unrecorded=job.alone_ns is not None,
        recorded_step_ns=job.step_ns,
        steps=job.steps,
    )


def _fix(rule: JobRule, symptom: JobSymptom, step_ns: float) -> Fix:
    evidence = {"kernels_ns": symptom.kernels_ns, "floor_ns": 0.0, "calls": symptom.count}
    return Fix(
        rule=rule.name,
        sentence=symptom.sentence,
        short=symptom.short,
        where=symptom.where,
        most=next(iter(symptom.where), ()),
        count=symptom.count,
        alone_ns=symptom.high_ns,
        alone_low_ns=symptom.low_ns,
        then_ns=None,
        step_ns=step_ns,
        up_to=True,
        evidence=evidence,
        lines=symptom.lines,
    )


def early_reduction(subject: JobSubject) -> Iterator[JobSymptom]:
    """Find gradients that are reduced in micro-batches before the last.

    The least that this costs is their transfer, and the copies of reduced gradients. Ranks also wait in them, at
    least as long as each of them does in a step, and where launches limit all ranks, the host's time is lost too.
    """
    waits = subject.job.waits
    early = subject.joined(lambda evidence: evidence.early.kernels) & (waits.moving_ns >= SHORT_TRANSFER_NS)
    if not subject.knows_waiting or not early.any():
        return
    transfer_ns = subject.of_kernels(early, subject.transfer_ns)
    waiting_ns = subject.of_kernels(early, waits.waiting_ns)
    copies_ns = np.array([each.early.copies_ns[subject.counted] for each in subject.evidence], np.float64)
    calls_ns = np.array([each.early.calls_ns[subject.counted] for each in subject.evidence], np.float64)
    moved_ns = transfer_ns + copies_ns
    low_ns = float(moved_ns.min(0).mean())
    waited_ns = float((moved_ns + waiting_ns).min(0).mean()) - low_ns
    host_ns = min(float(calls_ns.mean(1).min()), subject.launching_ns)
    most_ns = subject.most_ns(subject.job.ranks, with_transfer=False)
    ones = np.ones(len(early), np.int64)
    count = float(subject.of_kernels(early, ones)[0].mean())
    every = float(subject.of_kernels(ones > 0, ones)[0].mean())
    sentence = (
        f"{count_text(round(count))} of {count_text(round(every))} collectives of a step reduce gradients in "
        "micro-batches before the last: reduce them in the last micro-batch alone (no_sync() of DDP, "
        "set_requires_gradient_sync(False) of FSDP)"
    )
    first = subject.evidence[0]
    yield JobSymptom(
        sentence,
        "Reduce gradients in the last micro-batch alone: no_sync() of DDP, set_requires_gradient_sync of FSDP",
        min(low_ns, most_ns),
        min(low_ns + (waited_ns + host_ns) * subject.shortened[1], most_ns),
        count,
        (_common_path(first, first.early.kernels),),
        first.early.lines,
        float(transfer_ns.mean()),
    )


def _common_path(evidence: RankEvidence, chosen: Bools) -> Path:
    """Return the ranges around all of some collectives of a rank."""
    held = evidence.exchanges
    paths = [held.places[place][0] for place in set(held.kernels.place[chosen].tolist())]
    common: list[str] = []
    for names in zip(*paths, strict=False):
        if len(set(names)) > 1:
            break
        common.append(names[0])
    return tuple(common)


def read_values(subject: JobSubject) -> Iterator[JobSymptom]:
    """Find collectives outside of the model that the program waits for in nearly all steps.

    Without the waits, each host saves its own, and the slowest host still sets the pace: the least that one waits
    over all steps is the most that it saves, and the least that any rank waits in each step the least.
    """
    reads = [evidence.reads for evidence in subject.evidence]
    counts = np.array([(read.values + read.barriers)[subject.counted] for read in reads])
    most_steps = max(len(subject.counted) - 1, 1)
    if len(subject.counted) < FEWEST_STEPS or ((counts > 0).sum(1) < most_steps).any():
        return
    waiting_ns = np.array([read.waiting_ns[subject.counted] for read in reads], np.float64)
    handling_ns = np.array([read.handling_ns[subject.counted] for read in reads], np.float64).mean(1).min()
    most_ns = subject.most_ns(subject.job.ranks, with_transfer=True)
    least, most = subject.shortened
    low_ns = least * float(handling_ns + waiting_ns.min(0).mean())
    high_ns = most * float(handling_ns + waiting_ns.mean(1).min())
    values, barriers = (
        round(float(np.median(of_rank[subject.counted]))) for of_rank in (reads[0].values, reads[0].barriers)
    )
    waits = ["a barrier" if barriers == 1 else counted(barriers, "barrier")] if barriers else []
    waits += [counted(values, "reduced value")] if values else []
    line = f" ({reads[0].lines[0].called})" if reads[0].lines else ""
    remedies = ["leave the barrier out"] if barriers else []
    remedies += ["keep values on the GPU, and reduce and read them every N steps"] if values else []
    instead = "leave the barrier out" if barriers else "reduce and read them every N steps"
    yield JobSymptom(
        f"The program waits in each step for {' and '.join(waits)}{line}: {'; '.join(remedies)}",
        f"The program waits for {' and '.join(waits)} a step: {instead}",
        min(low_ns, most_ns),
        min(high_ns, most_ns),
        float(values + barriers),
        (reads[0].path,) if reads[0].path else (),
        reads[0].lines,
    )


def unused_parameters(subject: JobSubject) -> Iterator[JobSymptom]:
    """Find DDP's look for unused parameters in each step, where all are used.

    DDP then copies a map of the used parameters to the GPU and adds it up over ranks; if one is not used, it
    copies the map back (torch/csrc/distributed/c10d/reducer.cpp, "Skip allreducing local_used_map_dev").
    """
    maps = subject.joined(lambda evidence: evidence.maps.kernels)
    sums = subject.of_kernels(maps, np.ones(len(maps), np.int64))
    if (sums == 0).any() or any(evidence.maps.copied_back for evidence in subject.evidence):
        return
    transfer_ns = subject.of_kernels(maps, subject.transfer_ns)
    parameters = max(evidence.maps.parameters for evidence in subject.evidence)
    saved_ns = float(transfer_ns.min(0).mean()) + min(parameters * LOOK_NS, subject.launching_ns)
    saved_ns = min(saved_ns, subject.most_ns(subject.job.ranks, with_transfer=False))
    first = subject.evidence[0]
    count = f" of {counted(parameters, 'parameter')}" if parameters else ""
    yield JobSymptom(
        f"DDP looks for unused ones{count} in each step, and all are used: find_unused_parameters=False",
        "find_unused_parameters=False: all parameters are used",
        saved_ns,
        saved_ns,
        float(sums[0].mean()),
        (_common_path(first, first.maps.kernels),),
        (),
        float(transfer_ns.mean()),
    )


def slow_link(subject: JobSubject) -> Iterator[JobSymptom]:
    """Find large messages that move far slower than NVLink, between GPUs that have it.

    Bus bandwidth is comparable with a link's rate in one direction, whatever the collective and the number of
    ranks (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md).
    """
    link_bytes_per_s = min(
        (nvlink_bytes_per_s(gpu) for report in subject.reports for gpu in report.provenance.gpus), default=0.0
    )
    moving_ns = subject.job.waits.moving_ns
    bus_bytes = np.concatenate([each.exchanges.kernels.bus_bytes for each in subject.evidence])
    filling = (bus_bytes >= FILLS_LINK) & (moving_ns > 0)
    if not link_bytes_per_s or not filling.any() or not subject.knows_waiting:
        return
    bytes_per_s = float(bus_bytes[filling].sum() / moving_ns[filling].sum() * 1e9)
    if bytes_per_s > NOT_NVLINK * link_bytes_per_s:
        return
    transfer_ns = float(subject.of_kernels(filling, subject.transfer_ns).mean(1).min())
    saved_ns = transfer_ns * (1 - bytes_per_s / link_bytes_per_s)
    rates = f"{bytes_per_s / 1e9:.0f} of NVLink's {link_bytes_per_s / 1e9:.0f} GB/s"
    yield JobSymptom(
        f"Collectives of {count_text(FILLS_LINK >> 20)} MiB and more move {rates}: if the ranks are on one "
        "machine, look why they do not use it (unset NCCL_P2P_DISABLE; NCCL_DEBUG=INFO tells)",
        f"Collectives move {rates}: on one machine, unset NCCL_P2P_DISABLE; NCCL_DEBUG=INFO tells the way",
        saved_ns,
        saved_ns,
        float(subject.of_kernels(filling, np.ones(len(filling), np.int64))[0].mean()),
        kernels_ns=transfer_ns,
    )


def one_after_another(subject: JobSubject) -> Iterator[JobSymptom]:
    """Find ranks that send what they computed and compute in turn: a pipeline with one micro-batch under way."""
    if not subject.job.in_turn:
        return
    each_ns = subject.computing_ns.mean(1)
    saved_ns = subject.most_ns_of(float(each_ns.max()))
    most = time_in_digits(float(each_ns.max()))
    yield JobSymptom(
        f"Ranks compute one after another, each for at most {most} of {time_in_digits(subject.job.step_ns)}: "
        "divide the batch into more micro-batches, so that all ranks have one (GPipe, 1F1B)",
        f"Ranks compute one after another, each for at most {most}: more micro-batches (GPipe, 1F1B)",
        saved_ns,
        saved_ns,
        1.0,
    )


def host_bound(subject: JobSubject) -> Iterator[JobSymptom]:
    """Find a job whose GPUs all have little to do, and whose programs do not pause: its CPUs set the pace.

    A pause within forward, backward or the update is the model's own Python, such as DTensor's dispatch.
    """
    if not subject.knows_waiting:
        return
    work_ns = subject.step_ns - subject.most_ns(subject.job.ranks, with_transfer=True)
    pauses_ns = max(float(each.paused_outside_ns[subject.counted].mean()) for each in subject.evidence)
    least_ns, most_ns = (share * subject.job.step_ns for share in subject.shortened)
    if work_ns + pauses_ns > LITTLE_WORK * least_ns:
        return
    of_step = f"{time_in_digits(work_ns)} of {time_in_digits(subject.step_ns)}"
    yield JobSymptom(
        f"No GPU works for more than {of_step}: the CPUs set the pace. Launch less (torch.compile, CUDA graphs), "
        "or give each rank more work: larger batches, or whole models in place of one divided over GPUs",
        f"No GPU works for more than {of_step}: torch.compile, larger batches, or a whole model on each GPU",
        least_ns - work_ns - pauses_ns,
        most_ns - work_ns - pauses_ns,
        1.0,
    )


#: In the order in which rows of equal figures are shown.
JOB_RULES = (
    JobRule("straggler", "a rank that is late", straggler, "ranks that are longer in turn"),
    JobRule("uneven_work", "uneven work", uneven_work, "ranks that have more in turn; the same kernels, slower"),
    JobRule(
        "early_reduction", "reducing in each micro-batch", early_reduction, "no_sync(); sums of tensor parallelism"
    ),
    JobRule("read_values", "waiting for reduced values", read_values, "values that are read every tenth step"),
    JobRule("unused_parameters", "looking for unused parameters", unused_parameters, "a model with unused ones"),
    JobRule("slow_link", "a link slower than NVLink", slow_link, "small messages; GPUs without NVLink"),
    JobRule("one_after_another", "ranks that compute in turn", one_after_another, "eight micro-batches under way"),
    JobRule("host_bound", "CPUs that set the pace", host_bound, "GPUs that work for over a quarter of a step"),
)
