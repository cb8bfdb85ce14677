"""The rules of a CPU, each with its condition, sentence, figure and near miss.

They count operators; nothing is replayed. A figure is the time of what would go away or become shorter, "about":
what takes its place is not taken off, and what Python does around it counts only where ranges show it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from ..account.in_turn import has_workers
from ..report.account import LineTime
from ..support.small_numbers import covered, last_marked, next_marked, rows_of_each
from ..support.text import capitalized
from ..trace import MODEL_FORWARD, NO_CATEGORY, Bools, Int64s, Path
from ..vocabulary import BACKWARD, FORWARD, OPTIMIZER
from .cpu_subject import GRADIENT_OF_PARAMETER, OF_ENGINE, CpuSubject
from .optimizer_rules import FUSED_ON_CPU, fused_text, optimizer_name, texts_on_optimizer
from .pause_rules import remedy_of_loading
from .symptoms import Unjudged

#: From how many parameters on updates one by one count, and from how many calls in a loop on, of operators how
#: short on average, a loop.
MANY_PARAMETERS, MANY_CALLS, SHORT_NS = 20, 16, 60_000
#: An operator that the update of each parameter has once, by kind of optimizer; of SGD there are two `add_`.
ONCE = ("aten::addcdiv_", "aten::lerp_", "aten::sqrt")
SGD, SGD_TIMES = "aten::add_", 2
#: Operators that update many parameters at once, and one of them that only counts steps.
AT_ONCE, COUNTS_STEPS = ("aten::_fused_", "aten::_foreach_"), "aten::_foreach_add_"
#: Pairs of an operator of forward and the node that it makes for backward.
NODES = (
    ("aten::addmm", "AddmmBackward0"),
    ("aten::convolution", "ConvolutionBackward0"),
    ("aten::bmm", "BmmBackward0"),
    ("aten::native_layer_norm", "NativeLayerNormBackward0"),
    ("aten::native_batch_norm", "NativeBatchNormBackward0"),
)
#: So many times as often does forward run what reaches backward, if it runs something for nothing.
MORE_FORWARD = 1.4
#: How many times as many gradients as updated parameters are computed, and how many more, if some are for nothing.
MORE_GRADIENTS, FEWEST_GRADIENTS = 1.5, 2
#: Written-out attention: a softmax between two products, at most this many operators apart; and its near misses.
SOFTMAX, PRODUCTS, NEAR_SOFTMAX = "aten::_softmax", ("aten::bmm", "aten::baddbmm"), 60
FUSED_ATTENTION = (
    "aten::scaled_dot_product_attention",
    "aten::_scaled_dot_product_attention_math",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
)
#: What the operators between the products have as theirs in backward.
OF_SCORES = re.compile(
    r"aten::(?:_softmax(?:_backward_data)?|masked_fill_?|where|(?:native_)?dropout(?:_backward)?|div_?|mul_?)"
)
#: From this share of the parameters in float64 on, the program computes in double precision; half that time is
#: saved, as numbers are half as large and twice as many fit into a register.
DOUBLE, DOUBLE_FROM, SAVED_BY_FLOAT = "float64", 0.5, 0.5


@dataclass(frozen=True, slots=True)
class CpuSymptom:
    """What a rule found: the words of its sentence, the time concerned, ns per step, and where."""

    words: Mapping[str, object]
    about_ns: float
    where: tuple[Path, ...]
    count: float
    evidence: Mapping[str, float] = field(default_factory=dict)
    lines: tuple[LineTime, ...] = ()


Answers = Iterator[CpuSymptom | Unjudged]


@dataclass(frozen=True, slots=True)
class CpuRule:
    """A rule: its name in JSON, how screens call it, when it speaks and when not, its sentence and figure.

    `short` has the cause and the remedy in the few words of a row.
    """

    name: str
    called: str
    condition: str
    sentence: str
    short: str
    figure: str
    near_miss: str
    find: Callable[[CpuSubject], Answers]
    needs_steps: bool = False


def loader(subject: CpuSubject) -> Answers:
    """Find time in which the program waits for its next batch."""
    about_ns = subject.loading_ns
    if about_ns:
        where = subject.loading_places()
        place = f" in {where[0][-1]}" if where else ""
        remedy = remedy_of_loading(has_workers(subject.trace, subject.run))
        words = {"place": place, "remedy": remedy, "to_do": capitalized(remedy)}
        yield CpuSymptom(words, about_ns, where, 0.0, lines=subject.loading_lines())


def updates_of(subject: CpuSubject) -> float:
    """Return how many updates by optimizers a step has: less than one, if some steps have none."""
    return len(subject.ranges_of_phase(OPTIMIZER)) / subject.steps or 1.0


def updated_one_by_one(subject: CpuSubject, *names: str) -> float:
    """Return how many parameters are updated in a step that updates, by operators that each has once."""
    in_update = subject.in_phase(OPTIMIZER)
    most = max(subject.per_step(in_update & subject.named(name)) for name in names)
    return most / min(updates_of(subject), 1.0)


def optimizer(subject: CpuSubject) -> Answers:
    """Find an optimizer that updates one parameter after another."""
    in_update = subject.in_phase(OPTIMIZER)
    updated = updated_one_by_one(subject, *ONCE) or updated_one_by_one(subject, SGD) / SGD_TIMES
    at_once = [name for prefix in AT_ONCE for name in subject.beginning(prefix) if name != COUNTS_STEPS]
    if updated < MANY_PARAMETERS or subject.per_step(in_update & subject.named(*at_once)) >= 1:
        return
    where = subject.places(in_update)
    called = optimizer_name(texts_on_optimizer(subject.trace.provenance, where))
    if called is not None and called not in FUSED_ON_CPU:
        return
    operators = subject.per_step(in_update)
    words = {
        "parameters": round(updated),
        "operators": round(operators),
        "remedy": fused_text(called, has_place=False),
        "short": fused_text(called),
    }
    lines = subject.lines(in_update)
    yield CpuSymptom(words, subject.phase_ns(OPTIMIZER), where, operators, lines=lines)


def loop(subject: CpuSubject) -> Answers:
    """Find a module that a Python loop calls many times, with short operators."""
    loops = [loop for loop in map(_Loop.of, _groups_of_calls(subject)) if loop is not None]
    if not loops:
        return
    longest = max(loops, key=lambda loop: loop.wall_ns)
    forward_ns = subject.phase_ns(FORWARD)
    share = min(longest.wall_ns / forward_ns, 1.0) if forward_ns else 1.0
    about_ns = longest.wall_ns + share * subject.row_ns(BACKWARD)
    words = {"module": longest.name, "calls": round(longest.calls), "lasts": f"{longest.operator_ns / 1e3:.0f} µs"}
    where = subject.places(longest.operators)
    lines = subject.lines(longest.operators)
    yield CpuSymptom(words, about_ns, where, subject.per_step(longest.operators), lines=lines)


@dataclass(frozen=True, slots=True)
class _Calls:
    """The calls of modules of one name, in calls of a module of one name."""

    subject: CpuSubject
    rows: Int64s
    around: Int64s  # the node of the call around each


def _groups_of_calls(subject: CpuSubject) -> Iterator[_Calls]:
    attribution = subject.attribution
    ranges = attribution.ranges
    home = attribution.home
    forest = attribution.forest
    rows = subject.ranges_of_kind(MODEL_FORWARD)
    around = forest.above(home[rows]).astype(np.int64)
    name_around = np.where(around >= 0, ranges.name_id[forest.range[around]], -1)
    for _, group in rows_of_each(name_around, ranges.name_id[rows]):
        yield _Calls(subject, rows[group], around[group])


@dataclass(frozen=True, slots=True)
class _Loop:
    """A module that is called many times in one call of the module around it."""

    name: str
    calls: float
    wall_ns: float  # from the first to the last call, per step
    operator_ns: float  # of an operator, on average
    operators: Bools

    @classmethod
    def of(cls, calls: _Calls) -> _Loop | None:
        """Return the loop that some calls are; None if they are few, or their operators long."""
        subject = calls.subject
        ranges = calls.subject.attribution.ranges
        outer = len(np.unique(calls.around))
        if len(calls.rows) / outer < MANY_CALLS:
            return None
        operators = subject.in_ranges(calls.rows)
        if not operators.any() or subject.ns[operators].mean() > SHORT_NS:
            return None
        wall_ns = 0.0
        for _, group in rows_of_each(calls.around):
            rows = calls.rows[group]
            wall_ns += float(ranges.end_ns[rows].max() - ranges.start_ns[rows].min())
        name = subject.trace.names[ranges.name_id[calls.rows[0]]]
        lasts_ns = float(subject.ns[operators].mean())
        return cls(name, len(calls.rows) / outer, wall_ns / subject.steps, lasts_ns, operators)


def unused(subject: CpuSubject) -> Answers:
    """Find a call of a model whose result no backward uses."""
    if not _runs_more_forward(subject):
        return
    ranges = subject.attribution.ranges
    calls = _outermost_calls(subject)
    for (name_id,), group in rows_of_each(ranges.name_id[calls]):
        of_model = calls[group]
        needless = _behind_backward(subject, of_model, is_only_model=len(of_model) == len(calls))
        if len(of_model) < 1.9 * subject.steps or len(needless) < 0.9 * subject.steps:
            continue
        about_ns = subject.wall_ns(needless)
        model = subject.trace.names[name_id]
        words = {"model": model, "calls": round(len(of_model) / subject.steps)}
        lines = subject.lines(subject.in_ranges(needless))
        yield CpuSymptom(words, about_ns, ((model,),), len(needless) / subject.steps, lines=lines)


def _runs_more_forward(subject: CpuSubject) -> bool:
    """Return whether forward runs operators that backward never reaches, by the first pair that a step has."""
    in_forward = subject.in_phase(FORWARD)
    for operator, node in NODES:
        reached = subject.per_step(subject.named(node))
        if reached >= 1:
            return subject.per_step(in_forward & subject.named(operator)) >= MORE_FORWARD * reached
    return False


def _outermost_calls(subject: CpuSubject) -> Int64s:
    """Return the calls of models that are in no other such call, by start."""
    attribution = subject.attribution
    forest = subject.attribution.forest
    calls = subject.ranges_of_kind(MODEL_FORWARD)
    of_model = np.zeros(len(forest) + 1, np.bool_)
    of_model[attribution.home[calls]] = True
    below = np.append(forest.below(of_model[:-1]), False)
    outermost: Int64s = calls[~below[forest.above(attribution.home[calls])]]
    return outermost


def _behind_backward(subject: CpuSubject, calls: Int64s, *, is_only_model: bool) -> Int64s:
    """Return the calls after their step's last backward, or where a step ends with its update, the first of two.

    A first call is taken only if no other model is called, which could use its result.
    """
    ranges = subject.attribution.ranges
    step_of = subject.step_of_range
    is_backward = subject.attribution.facts.backward_phase[ranges.name_id] & (ranges.category == NO_CATEGORY)
    backwards = subject.ranges_in_steps(is_backward)
    needless = []
    for (step,), group in rows_of_each(step_of[calls]):
        of_step = calls[group]
        ends_ns = ranges.end_ns[backwards[step_of[backwards] == step]]
        if not len(ends_ns):
            continue
        behind = of_step[ranges.start_ns[of_step] > ends_ns.max()]
        is_first = not len(behind) and is_only_model and len(of_step) >= 2
        needless.append(of_step[:1] if is_first else behind)
    return np.concatenate(needless) if needless else calls[:0]


def untrained(subject: CpuSubject) -> Answers:
    """Find gradients of parameters that no optimizer updates."""
    updated = updated_one_by_one(subject, *ONCE) or int(subject.run.get("updated_tensors") or 0)
    gradients = subject.named(GRADIENT_OF_PARAMETER)
    computed = subject.per_step(gradients) / max(_backward_runs(subject), _micro_batches(subject))
    if not updated or round(updates_of(subject)) > 1:
        return
    if computed >= MORE_GRADIENTS * updated and computed - updated >= FEWEST_GRADIENTS:
        words = {"computed": round(computed), "updated": round(updated)}
        about_ns = (1 - updated / computed) * subject.row_ns(BACKWARD)
        where, lines = subject.places(gradients), subject.lines(gradients)
        yield CpuSymptom(words, about_ns, where, computed - updated, lines=lines)


def _backward_runs(subject: CpuSubject) -> int:
    """Return how many times a step runs backward, by its ranges."""
    return max(round(len(subject.ranges_of_phase(BACKWARD)) / subject.steps), 1)


def _micro_batches(subject: CpuSubject) -> int:
    """Return the largest number that divides how often each of autograd's nodes ran in a step."""
    nodes = {
        name for name in subject.beginning("") if name.endswith("Backward0") and not name.startswith(OF_ENGINE)
    }
    counts = [round(subject.per_step(subject.named(name))) for name in nodes]
    return int(np.gcd.reduce([count for count in counts if count] or [1]))


def attention(subject: CpuSubject) -> Answers:
    """Find attention whose scores are written out: a softmax between two products."""
    if subject.per_step(subject.named(*FUSED_ATTENTION)) >= 1:
        return
    between, count = _between_products(subject)
    if count < subject.steps:
        return
    names = {subject.trace.names[number] for number in np.unique(subject.name_id[between]).tolist()}
    again = [name for name in (*names, f"{SOFTMAX}_backward_data") if OF_SCORES.fullmatch(name)]
    scores = between | (subject.in_phase(BACKWARD) & subject.named(*again))
    words = {"count": round(count / subject.steps)}
    where = subject.places(scores)
    lines = subject.lines(scores)
    yield CpuSymptom(words, subject.time_ns(scores), where, subject.per_step(scores), lines=lines)


def _between_products(subject: CpuSubject) -> tuple[Bools, int]:
    """Mark the operators between the products around each softmax outside of backward, and count the softmaxes."""
    order = np.argsort(subject.start_ns, kind="stable")
    count = len(order)
    is_product = subject.named(*PRODUCTS)[order]
    softmax = np.flatnonzero((subject.named(SOFTMAX) & ~subject.in_phase(BACKWARD))[order])
    before = last_marked(is_product)[softmax]
    after = next_marked(is_product)[softmax]
    fits = (before >= 0) & (after < count) & (after - before <= NEAR_SOFTMAX)
    between = np.zeros(count, np.bool_)
    between[order] = covered(before[fits] + 1, after[fits], count)
    return between, int(fits.sum())


def double(subject: CpuSubject) -> Answers:
    """Find a program whose parameters are in double precision."""
    dtypes = subject.run.get("parameter_dtypes")
    if not isinstance(dtypes, Mapping) or not dtypes:
        yield Unjudged("the report does not say in which types of numbers the program computes")
        return
    share = dtypes.get(DOUBLE, 0) / sum(dtypes.values())
    if share >= DOUBLE_FROM:
        everything = np.ones(len(subject.row), np.bool_)
        words = {"tensors": dtypes[DOUBLE]}
        about_ns = SAVED_BY_FLOAT * subject.time_ns(everything)
        where, lines = subject.places(everything), subject.lines(everything)
        yield CpuSymptom(words, about_ns, where, subject.per_step(everything), lines=lines)


#: In the order in which rows of equal figures are shown.
CPU_RULES = (
    CpuRule(
        "loader",
        "waiting for data",
        condition="the program's thread is in a range or function that loads data, and runs no operator",
        sentence="The program waits for data{place}: {remedy}",
        short="{to_do}",
        figure="the account's `data loading`",
        near_miss="batches that workers have ready",
        find=loader,
    ),
    CpuRule(
        "optimizer",
        "a fused optimizer",
        condition="operators of their own for each of 20 parameters or more, and none for many at once",
        sentence="The optimizer updates {parameters} parameters one after another, by {operators} operators: "
        "{remedy}",
        short="{short}: {parameters} parameters are updated one by one",
        figure="the time of the optimizer's ranges, Python in them with it",
        near_miss="fused=True or foreach=True; optimizers without fused=True",
        find=optimizer,
        needs_steps=True,
    ),
    CpuRule(
        "loop",
        "modules in Python loops",
        condition="a module is called 16 times or more in one call of the module around it, with operators "
        "under 60 µs",
        sentence="`{module}` is called {calls} times by a Python loop, with operators of {lasts}: one call for "
        "the sequence (nn.LSTM for LSTMCell), or torch.compile",
        short="Call {module} once for the sequence, not {calls} times, or torch.compile",
        figure="from the loop's first call to its last, and as large a share of backward as that is of forward",
        near_miss="few layers in a loop; long operators",
        find=loop,
    ),
    CpuRule(
        "unused",
        "forward that is not used",
        condition="a model is called twice a step, once behind the last backward, and 30% or more of forward's "
        "operators have no node in backward",
        sentence="`{model}` is called {calls} times a step, and no backward uses one of them: use the first "
        "result, or torch.no_grad()",
        short="Call {model} once a step, not {calls} times, or in torch.no_grad()",
        figure="the time of these calls",
        near_miss="two batches that both reach backward; a detached GAN; a teacher or evaluation in no_grad()",
        find=unused,
        needs_steps=True,
    ),
    CpuRule(
        "untrained",
        "gradients that are not used",
        condition="a backward computes gradients of 1.5 times as many parameters as the only optimizer updates",
        sentence="Backward computes gradients of {computed} parameters, and the optimizer updates {updated}: "
        "requires_grad_(False) for what is not trained, or torch.no_grad() around it",
        short="requires_grad_(False) for what is not trained: {computed} gradients, {updated} updates",
        figure="their share of the parameters, of backward's time",
        near_miss="micro-batches; several optimizers; fused updates in a trace that our recorder did not write",
        find=untrained,
        needs_steps=True,
    ),
    CpuRule(
        "attention",
        "written-out attention",
        condition="a softmax between two bmm, at most 60 operators apart, outside of backward, in each step",
        sentence="Attention is written out {count} times a step (a softmax between two products): "
        "scaled_dot_product_attention",
        short="scaled_dot_product_attention: {count} are written out a step",
        figure="the operators between the products, and their like in backward",
        near_miss="scaled_dot_product_attention, also where PyTorch computes it by products and a softmax",
        find=attention,
    ),
    CpuRule(
        "fp64",
        "double precision",
        condition="half of the parameters or more are in float64, as the recorder writes",
        sentence="{tensors} parameters are in float64: use float32 (model.float(), and inputs), unless float64 is "
        "meant",
        short="float32 instead of float64 (model.float(), and inputs): {tensors} parameters",
        figure="half of the operators' time",
        near_miss="a few parameters in float64",
        find=double,
    ),
)
