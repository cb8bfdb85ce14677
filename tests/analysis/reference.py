"""Attribution as the definitions put it, as slowly as they read: no index, no sweep, one piece of work at a time.

Written from the definitions in docs/attribution.md, over `building.Rows`; it shares no code with `analysis`.
What names mean is told by the few words that the generated reports are made of.
"""

from dataclasses import dataclass
from functools import cached_property

from tests.analysis.building import DOMAIN_CREATE, PUSH_POP, START_END, process_of

KINDS = ("kernel", "memcpy", "memset", "graph")
PHASE_WORDS = ("forward", "backward", "optimizer")
LIBRARIES = ("NCCL", "cuBLAS")
WORKERS = ("pt_data_pin", "pt_nccl_watchdg")
ENGINE = "autograd::engine::evaluate_function: "


@dataclass(frozen=True, eq=False)
class Seen:
    """A range of the report: closed, and with its name taken apart."""

    order: int
    name: str
    seq: int | None
    start: int
    end: int
    thread: int
    domain: int
    nested: bool

    @property
    def phase(self):
        return next((word for word in PHASE_WORDS if self.name.startswith(word)), None)

    @property
    def is_backward_operator(self):
        return self.name.startswith(ENGINE) or "Backward" in self.name

    @property
    def is_operator(self):
        return self.seq is not None or "::" in self.name or self.is_backward_operator

    @property
    def is_root(self):
        return bool(self.phase) or self.name.startswith(("step", "warmup"))

    def sort_key(self):
        return self.start, -self.end, self.order

    def contains(self, start, end):
        return self.start <= start and end <= self.end


@dataclass(frozen=True)
class Answer:
    """Where one piece of work belongs; `led` are the places in the path that a sequence number led to."""

    how: str
    path: tuple[Seen, ...]
    phase: str
    led: range = range(0)

    @property
    def names(self):
        return tuple(r.name for r in self.path)

    @property
    def in_warm_up(self):
        return any(r.name.startswith("warmup") for r in self.path)


def taken_apart(name):
    """Return the bare name of PyTorch's `name, seq = 3, op_id = 4, sizes = …` and its number."""
    bare, *suffixes = (name or "").split(", ")
    return bare, next((int(s.removeprefix("seq = ")) for s in suffixes if s.startswith("seq = ")), None)


def launch_of(rows, work):
    """Return the API call of the same process and correlation id: CUDA's own row first, then the earliest."""
    same = [
        call
        for call in rows.launches
        if call.correlation == work.correlation is not None and process_of(call.thread) == work.process
    ]
    return min(same, key=lambda call: (call.event_class not in (0, 1), call.start), default=None)


def in_order(rows):
    """Return the work in the order of the tables that hold it."""
    return sorted(rows.work, key=lambda work: KINDS.index(work.kind))


def ranges_of(rows):
    """Return push/pop and start/end ranges; one that was never closed ends with the capture."""
    real = [r for r in rows.ranges if r.event in (PUSH_POP, START_END)]
    ends = [e.end for e in [*real, *rows.launches, *rows.work] if e.end is not None]
    last = max([*ends, *(r.start for r in real)], default=0)
    ends = [last if r.end is None else r.end for r in real]
    return [
        Seen(order, *taken_apart(r.name), r.start, end, r.thread, r.domain, r.event == PUSH_POP)
        for order, (r, end) in enumerate(zip(real, ends, strict=True))
    ]


class Reference:
    """Answers for every piece of work of a report."""

    def __init__(self, rows, *, operators="auto", adopt=True, link=True):
        self.rows, self.adopt, self.link, self.mode = rows, adopt, link, operators
        self.ranges = ranges_of(rows)
        self.threads = {e.thread for e in [*self.ranges, *rows.launches]}
        parents = [r for r in self.ranges if r.nested and not self.of_library(r)]
        self.users = [r for r in parents if operators == "keep" or not r.is_operator]
        self.operators = [r for r in parents if r.is_operator]

    def answers(self):
        return [self.answer(work) for work in in_order(self.rows)]

    def answer(self, work):
        call = launch_of(self.rows, work)
        if call is None:
            return Answer("outside", (), "other")
        own = self.around(call, self.users)
        base, how = self.base(call) if self.adopt else ((), None)
        if how == "ambiguous":
            return self.phased(call, how, ())
        alone = self.unawaited_tail(call, own, base) if self.link else None
        if alone is not None:
            return self.phased(call, "linked", (*alone, *own), range(len(alone)))
        tail = self.tail(call, own, base) if self.link else None
        if tail is not None:
            head = base or own
            path = (*head, *tail, *(own if base else ()))
            return self.phased(call, "linked", path, range(len(head), len(head) + len(tail)))
        if own or base:
            return self.phased(call, how or "own", (*base, *own))
        stray = self.around(call, self.operators) if self.mode == "auto" else ()
        return self.phased(call, "own" if stray else "outside", stray)

    def phased(self, call, how, path, led=range(0)):
        phase = next((r.phase for r in reversed(path) if r.phase), None)
        elsewhere = "backward" if how == "linked" or self.is_known_autograd(call.thread) else "other"
        return Answer(how, tuple(path), phase or elsewhere, led)

    # A range owns the work launched inside it.

    def around(self, event, among, thread=None):
        """Return the ranges that contain the whole event, in the order of their starts."""
        at = event.thread if thread is None else thread
        inside = [r for r in among if r.thread == at and r.contains(event.start, event.end)]
        return tuple(sorted(inside, key=Seen.sort_key))

    def home(self, range_):
        """Return the path of a range itself."""
        outer = [r for r in self.around(range_, self.users) if r.sort_key() < range_.sort_key()]
        base = self.base(range_)[0] if self.adopt else ()
        return (*base, *outer, range_)

    def of_library(self, range_):
        named = [r for r in self.rows.ranges if r.event == DOMAIN_CREATE and r.name]
        names = {(process_of(r.thread), r.domain): r.name for r in named}
        process = process_of(range_.thread)
        if (process, range_.domain) in names or range_.domain == 0:
            return names.get((process, range_.domain)) in LIBRARIES
        fellows = [r for r in self.ranges if process_of(r.thread) == process and r.domain == range_.domain]
        return all(r.name.startswith("ncclGroup") for r in fellows)

    # Autograd's threads, and who waits for them.

    @cached_property
    def calls(self):
        """The API calls that caused work."""
        found = {id(call): call for work in self.rows.work if (call := launch_of(self.rows, work))}
        return list(found.values())

    def name(self, thread):
        return self.rows.thread_names.get(thread, "")

    def is_main(self, thread):
        return thread & 0xFFFFFF == thread >> 24 & 0xFFFFFF

    def is_root(self, thread):
        return any(r.thread == thread and r.is_root for r in self.users)

    def runs_nodes(self, thread):
        return any(r.thread == thread and r.name.startswith(ENGINE) for r in self.ranges)

    def says_autograd(self, thread):
        named = "autograd" in self.name(thread)
        return not self.is_main(thread) and (named or (self.runs_nodes(thread) and not self.is_root(thread)))

    def is_autograd(self, thread):
        if thread not in {call.thread for call in self.calls}:
            return False
        if self.name(thread) in WORKERS or self.is_main(thread):
            return False
        return self.says_autograd(thread) or (not self.is_root(thread) and self.behaves_like_autograd(thread))

    def is_known_autograd(self, thread):
        return self.is_autograd(thread) and self.says_autograd(thread)

    def behaves_like_autograd(self, thread):
        fellows = [t for t in self.threads if process_of(t) == process_of(thread)]
        if any("autograd" in self.name(t) or self.runs_nodes(t) for t in fellows):
            return False
        mine = [call for call in self.calls if call.thread == thread]
        starts_kernels = any(
            launch_of(self.rows, w) in mine for w in self.rows.work if w.kind in ("kernel", "graph")
        )
        watched = [call for call in mine if any(self.around(call, self.users, t) for t in self.could_wait(thread))]
        return starts_kernels and bool(watched) and all(self.waiting(call) for call in watched)

    def could_wait(self, thread):
        return [
            t
            for t in self.threads
            if t != thread
            and process_of(t) == process_of(thread)
            and self.name(t) not in WORKERS
            and not self.says_autograd(t)
        ]

    def quiet(self, thread, start, end):
        """Tell whether a thread makes no CUDA call and opens or closes no range from start to end."""
        calls = [c for c in self.rows.launches if c.thread == thread and c.start <= end and c.end >= start]
        turns = [t for r in self.ranges if r.thread == thread for t in (r.start, r.end) if start <= t <= end]
        return not calls and not turns

    def waiting(self, event):
        """Return the threads that have a range open around the event and are quiet meanwhile."""
        return [
            t
            for t in self.could_wait(event.thread)
            if self.around(event, self.users, t) and self.quiet(t, event.start, event.end)
        ]

    def burst(self, thread, event):
        """Count the calls around the event between whose first and last the thread stays quiet."""
        return sum(
            self.quiet(thread, min(c.start, event.start), max(c.end, event.end))
            for c in self.calls
            if c.thread == event.thread
        )

    def base(self, event):
        """Return the path of the thread that waits for an event of autograd's, and how that was decided."""
        if not self.is_autograd(event.thread) or not (waiting := self.waiting(event)):
            return (), None
        paths = {t: self.around(event, self.users, t) for t in waiting}
        rank = {t: self.rank(t, event, paths[t]) for t in waiting}
        best = [t for t in waiting if rank[t] == max(rank.values())]
        return (paths[best[0]], "adopted") if len(best) == 1 else ((), "ambiguous")

    def rank(self, thread, event, path):
        return any(r.phase == "backward" for r in path), self.burst(thread, event)

    # A backward operator belongs to the forward operator of its number.

    def tail(self, call, own, base):
        """Return the ranges that a sequence number leads to, below those that are there; None without a link."""
        forward = self.forward_operator(call, own, base)
        path = self.around(forward, self.users) if forward else ()
        if not path:
            return None
        common = max((n + 1 for n, r in enumerate(path) if r in (base or own)), default=0)
        return tuple(r for r in path[common:] if not r.phase and not r.is_operator)

    def unawaited_tail(self, call, own, base):
        """Return where a number leads from under no range at all, if it leads to one thread only."""
        mine = [r for r in own if not r.is_operator]
        if base or mine or not self.is_known_autograd(call.thread):
            return None
        fellows = [t for t in self.threads if process_of(t) == process_of(call.thread)]
        made = [operator for t in fellows if (operator := self.operator_of(call, t))]
        paths = [path for operator in made if (path := self.around(operator, self.users))]
        if len(paths) != 1:
            return None
        return tuple(r for r in paths[0] if not r.phase and not r.is_operator) or None

    def forward_operator(self, call, own, base):
        mine = [r for r in own if not r.is_operator]
        by_phase_only = not mine if base else bool(own) and own[-1].phase == "backward"
        return self.operator_of(call, (base or own)[-1].thread) if by_phase_only else None

    def operator_of(self, call, thread):
        """Return the forward operator on a thread that made the backward node around a call."""
        nodes = [r for r in self.ranges if r.nested and r.is_backward_operator]
        inside = self.around(call, nodes)
        if not inside:
            return None
        node = inside[-1]
        number = self.number(node, nodes)
        made = [
            r
            for r in self.ranges
            if r.nested and not r.is_backward_operator and r.thread == thread and r.start < node.start
            and r.seq == number is not None
        ]  # fmt: skip
        return max(made, key=Seen.sort_key, default=None)

    def number(self, node, nodes):
        """Return a node's number; the engine's range around a node has that of the node."""
        wanted = node.name.removeprefix(ENGINE)
        children = [r for r in self.around_inverse(node, nodes) if r.name == wanted and r.seq is not None]
        return children[0].seq if node.name.startswith(ENGINE) and children else node.seq

    def around_inverse(self, outer, among):
        return sorted(
            (r for r in among if r.thread == outer.thread and r is not outer and outer.contains(r.start, r.end)),
            key=Seen.sort_key,
        )
