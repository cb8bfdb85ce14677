"""Attribution as the definitions put it, as slowly as they read: no index, no sweep, one piece of work at a time.

Written from the definitions in docs/attribution.md, over `building.Rows`; it shares no code with `analysis`.
What names mean is told by the few words that the generated reports are made of.
"""

from dataclasses import dataclass, replace

from tests.analysis.making.building import CATEGORY, DOMAIN_CREATE, PUSH_POP, START_END, process_of
from tests.analysis.making.reference_again import recomputations
from tests.analysis.making.reference_gaps import gaps_between_calls
from tests.analysis.making.reference_threads import ENGINE, PHASE_WORDS, Threads, launch_of

KINDS = ("kernel", "memcpy", "memset", "graph")
LIBRARIES = ("NCCL", "cuBLAS")


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
    part: str = ""  # of the model, as this project's annotation says: model/forward or model/backward
    is_open: bool = False  # never closed

    def is_called(self, words):
        """Return whether the name begins so; what a part of a model is called says nothing."""
        return not self.part and self.name.startswith(words)

    @property
    def phase(self):
        return next((word for word in PHASE_WORDS if self.is_called(word)), None)

    @property
    def is_computed_again(self):
        return self.part == "model/forward" and self.name == "recompute"

    @property
    def told(self):
        return "backward" if self.is_computed_again else self.part.removeprefix("model/") or None

    @property
    def is_backward_operator(self):
        return self.name.startswith(ENGINE) or "Backward" in self.name

    @property
    def is_operator(self):
        return self.seq is not None or "::" in self.name or self.is_backward_operator

    @property
    def is_dropped(self):
        """Return whether a linked path leaves the range out."""
        return bool(self.phase) or self.is_seen_through or self.is_called(("step", "warmup"))

    @property
    def is_seen_through(self):
        """Return whether the range keeps no work of a backward from being led to its forward."""
        return self.is_operator or self.is_computed_again

    def sort_key(self):
        return self.start, -self.end, self.order

    def contains(self, start, end):
        return self.start <= start and end <= self.end


@dataclass(frozen=True)
class Moment:
    """An instant on a thread."""

    thread: int
    start: int
    end: int


@dataclass(frozen=True)
class Answer:
    """Where one piece of work belongs; `led` and `captured`: places in the path by a number or a capture."""

    how: str
    path: tuple[Seen, ...]
    phase: str
    led: range = range(0)
    unfit: bool = False
    captured: range = range(0)

    @property
    def names(self):
        return tuple(r.name for r in self.path)

    @property
    def in_warm_up(self):
        return any(r.is_called("warmup") for r in self.path)


def taken_apart(name):
    """Return the bare name of PyTorch's `name, seq = 3, op_id = 4, sizes = …` and its number."""
    bare, *suffixes = (name or "").split(", ")
    return bare, next((int(s.removeprefix("seq = ")) for s in suffixes if s.startswith("seq = ")), None)


def creation_of(rows, work):
    """Return the creation of the node that made a piece of work: of a clone, that of its original."""
    mine = [node for node in rows.nodes if process_of(node.thread) == work.process]
    number = work.node if work.kind != "graph" else None
    for _ in range(len(mine) + 1):
        found = next((node for node in mine if node.number == number), None)
        if found is None or found.original is None:
            return found
        number = found.original
    return None


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
        Seen(
            order, *taken_apart(r.name), r.start, end, r.thread, r.domain, r.event == PUSH_POP, part_of(rows, r),
            r.end is None,
        )
        for order, (r, end) in enumerate(zip(real, ends, strict=True))
    ]  # fmt: skip


def part_of(rows, range_):
    """Return the name of a range's category in this project's domain, if it is one of the model's."""
    same = [
        r for r in rows.ranges if process_of(r.thread) == process_of(range_.thread) and r.domain == range_.domain
    ]
    if not any(r.event == DOMAIN_CREATE and r.name == "nvtx-kernels" for r in same):
        return ""
    names = [r.name for r in same if r.event == CATEGORY and r.category == range_.category]
    return names[0] if names and names[0].startswith("model/") else ""


class Reference(Threads):
    """Answers for every piece of work of a report."""

    def __init__(self, rows, *, operators="auto", adopt=True, link=True):
        self.rows, self.adopt, self.mode = rows, adopt, operators
        self.ranges = ranges_of(rows)
        self.threads = {e.thread for e in [*self.ranges, *rows.launches]}
        parents = [r for r in self.ranges if r.nested and not self.of_library(r)]
        between = [
            Seen(len(rows.ranges), "between the model's calls", None, low, high, call.thread, call.domain, True)
            for low, high, call in (gaps_between_calls(self.ranges, parents) if adopt else ())
        ]
        self.ranges, parents = [*self.ranges, *between], [*parents, *between]
        again = [
            Seen(-1, "recompute", None, start, end, node.thread, node.domain, True, "model/forward")
            for start, end, node in (recomputations(self.ranges, self.around) if adopt else ())
        ]
        self.ranges, parents = [*again, *self.ranges], [*again, *parents]
        self.users = [r for r in parents if operators == "keep" or not r.is_operator]
        self.operators = [r for r in parents if r.is_operator]
        self.link, self.unfit = link and bool(self.users), set()

    def answers(self):
        return [self.captured(work, self.answer(work)) for work in in_order(self.rows)]

    def captured(self, work, launched):
        """Continue the path of a replay's launch with the ranges of the capture, below phases and steps."""
        created = creation_of(self.rows, work)
        if created is None or launched.how == "ambiguous":
            return launched
        tail = opened = self.around(Moment(created.thread, created.at, created.at), self.users)
        tail = tail[
            max((n + 1 for n, r in enumerate(tail) if r.phase or r.is_called(("step", "warmup"))), default=0) :
        ]
        names = tuple(r.name for r in tail)
        same = [n for n in range(1, len(tail) + 1) if launched.names[-n:] == names[:n]]
        tail = tail[max(same, default=0) :]
        if not tail:
            named = self.phase_of(launched.path, launched.led) or self.phase_of(opened)
            return replace(launched, phase=named or launched.phase)
        path, before = (*launched.path, *tail), len(launched.path)
        places = range(before, len(path))
        phase = self.phase_of(path, launched.led, places) or self.phase_of(opened) or launched.phase
        return replace(launched, how="captured", path=path, phase=phase, captured=places)

    def answer(self, work):
        call = launch_of(self.rows, work)
        if call is None:
            return Answer("outside", (), "other")
        how, path, led = self.placed(call)
        if how == "outside" and self.mode == "auto" and (stray := self.around(call, self.operators)):
            return self.phased(call, "own", stray)
        return self.phased(call, how, path, led)

    def placed(self, event):
        """Return how a call or an operator is placed, its path, and the places in it that a number led to."""
        own = self.around(event, self.users)
        base, how = self.base(event) if self.adopt else ((), None)
        if how == "ambiguous":
            return how, (), range(0)
        alone = self.unawaited_tail(event, own, base) if self.link else None
        if alone is not None:
            return "linked", (*alone, *own), range(len(alone))
        tail = self.tail(event, own, base) if self.link else None
        if tail is not None:
            again = tuple(r for r in own if r.is_computed_again)
            head = base or tuple(r for r in own if not r.is_computed_again)
            path = (*head, *tail, *(own if base else again))
            return "linked", path, range(len(head), len(head) + len(tail))
        return how or ("own" if own else "outside"), (*base, *own), range(0)

    def phased(self, call, how, path, led=range(0)):
        phase = self.phase_of(path, led)
        elsewhere = "backward" if self.is_known_autograd(call.thread) else self.unnamed(call)
        return Answer(how, tuple(path), phase or elsewhere, led, id(call) in self.unfit)

    def unnamed(self, call):
        """Return the phase of a call in no range that says one: by the node, or by the turn that it is in."""
        if self.around(call, self.nodes):
            return "backward"
        if any(start <= call.start and call.end <= end for start, end in self.forwards(call.thread)):
            return "forward"
        if not any(r.part and process_of(r.thread) == process_of(call.thread) for r in self.users):
            return "other"
        return "forward" if self.leads_to_backward(call) else "other"

    def forwards(self, thread):
        """Return the first start and the last end of the operators that made nodes of each backward.

        A forward ends where a phase, a step or warm-up of the thread begins or ends, or a node of the process
        begins. None is known where the process names its forward.
        """
        mine = [r for r in self.ranges if process_of(r.thread) == process_of(thread)]
        if any(r.phase == "forward" for r in self.users if r in mine):
            return []
        nodes = [r for r in self.nodes if r in mine]
        numbers = [(node, self.number(node, self.nodes)) for node in nodes]
        makers = {self.operator_of(node, number, None) for node, number in numbers if number is not None}
        turns = [
            moment for r in self.users if r.thread == thread and (r.phase or r.is_called(("step", "warmup")))
            for moment in (r.start, r.end)
        ]  # fmt: skip
        turns += [r.start for r in nodes]
        found = []
        for maker in sorted(makers - {None}, key=Seen.sort_key):
            if maker.thread != thread or self.around(maker, self.nodes):
                continue
            if found and not any(found[-1][1] <= turn <= maker.start for turn in turns):
                found[-1] = found[-1][0], max(found[-1][1], maker.end)
            else:
                found.append((maker.start, maker.end))
        return found

    def leads_to_backward(self, call):
        """Return whether a call lies between the end of a call of a model, and the backward after that."""
        ended = max((r.end for r in self.models_called(call.thread) if r.end <= call.start), default=None)
        if ended is None:
            return False
        begins = [
            (r.start, r.thread == call.thread and not r.is_backward_operator)
            for r in [*self.nodes, *(r for r in self.users if r.part == "model/backward")]
            if process_of(r.thread) == process_of(call.thread) and r.start >= ended
            and (r.thread == call.thread or not self.models_called(r.thread))
        ]  # fmt: skip
        begin, may_follow_the_loss = min(begins, default=(None, True))
        if may_follow_the_loss or call.end > begin:
            return False
        turns = [
            moment for r in self.users if r.thread == call.thread and (r.phase or r.is_called(("step", "warmup")))
            for moment in (r.start, r.end)
        ]  # fmt: skip
        return not any(ended <= moment <= begin for moment in turns)

    def models_called(self, thread):
        """Return the outermost ranges of models on a thread that backward did not call."""
        mine = [r for r in self.users if r.part and r.thread == thread and not self.around(r, self.nodes)]
        return [
            r for r in mine
            if r.told == "forward" and not any(o.sort_key() < r.sort_key() for o in self.around(r, mine))
        ]  # fmt: skip

    @property
    def engine(self):
        return [r for r in self.ranges if r.nested and r.name.startswith(ENGINE)]

    @property
    def nodes(self):
        return [r for r in self.ranges if r.nested and r.is_backward_operator]

    def is_called_by_engine(self, r):
        """Return whether a range is inside another, of autograd's engine."""
        return any(other is not r for other in self.around(r, self.engine))

    def phase_of(self, path, led=range(0), captured=range(0)):
        """Return a path's phase: its nearest name's, else its nearest part's; forward in backward is backward."""
        phase, is_named = None, False
        for place, r in enumerate(path):
            on_autograds = place not in captured and (
                self.is_known_autograd(r.thread) or (r.told == "forward" and self.is_called_by_engine(r))
            )
            in_backward = phase == "backward" or (phase is None and on_autograds)
            told = None if is_named or (place in led and r.told == "forward") else r.told
            if says := r.phase or told:
                phase = "backward" if says == "forward" and in_backward else says
            elif in_backward or (phase is None and place in led):
                phase = "backward"
            is_named = is_named or bool(r.phase)
        return phase

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

    # A backward operator belongs to the forward operator of its number.

    def tail(self, call, own, base):
        """Return the ranges that a sequence number leads to, below those that are there; None without a link."""
        mine = [r for r in own if not r.is_seen_through]
        above = base or [r for r in own if not r.is_computed_again]
        by_phase_only = not mine if base else bool(own) and own[-1].phase == "backward"
        if not by_phase_only and not (own and self.is_in_called_engine(call, own, base)):
            return None
        path = self.led_to(call, above[-1].thread if above else None)
        common = max((n + 1 for n, r in enumerate(path) if r in above), default=0)
        return tuple(r for r in path[common:] if not r.is_dropped) if path else None

    def unawaited_tail(self, call, own, base):
        """Return where a number leads from under no range at all."""
        mine = [r for r in own if not r.is_seen_through]
        is_called = not own and self.is_in_called_engine(call, own, base)
        if base or mine or not (self.is_known_autograd(call.thread) or is_called):
            return None
        return tuple(r for r in self.led_to(call, None) if not r.is_dropped) or None

    def is_in_called_engine(self, call, own, base):
        """Return whether a thread runs backward itself, and no range of the user's is open below the engine's."""
        inside = self.around(call, self.engine)
        is_owned = any((r.part or r.phase) and not r.is_computed_again for r in own)
        if base or not inside or is_owned or self.is_known_autograd(call.thread):
            return False
        around = [r for r in self.around(inside[-1], self.users) if not r.is_seen_through]
        return [r for r in own if not r.is_seen_through][-1:] == around[-1:]

    def led_to(self, call, waiting):
        """Return the path of the operator that made the backward node around a call; empty without one."""
        nodes = [r for r in self.ranges if r.nested and r.is_backward_operator]
        inside = self.around(call, nodes)
        number = self.number(inside[-1], nodes) if inside else None
        if number is None:
            return ()
        made = self.operator_of(inside[-1], number, waiting)
        if made is None:
            self.unfit.add(id(call))
            return ()
        how, path, _ = self.placed(made)
        return () if how == "ambiguous" else path

    def operator_of(self, node, number, waiting):
        """Return the one operator of a number that fits a node; None without one, or with two threads'."""
        fits = []
        for thread in self.threads:
            same = [
                r for r in self.ranges
                if r.nested and not r.is_backward_operator and r.thread == thread and r.seq == number
                and r.start < node.start
            ]  # fmt: skip
            last = max(same, key=Seen.sort_key, default=None)
            if last and self.fits(last, node, waiting):
                fits.append(last)
        there = self.devices(node.thread)
        near = [r for r in fits if self.devices(r.thread) & there]
        return (near or fits)[0] if len(near or fits) == 1 else None

    def fits(self, operator, node, waiting):
        """Return whether an operator can have made a node."""
        made = node.name.removeprefix(ENGINE).partition("Backward")[0].lower()
        if operator.name.rpartition("::")[2] != made or process_of(operator.thread) != process_of(node.thread):
            return False
        if waiting not in (None, operator.thread) and self.is_independent(operator.thread):
            return False
        steps = [r for r in self.users if r.is_called("step")]
        around_node = self.around(node, steps, node.thread if waiting is None else waiting)
        around_operator = self.around(operator, steps)
        if around_node and operator.start < around_node[0].start:
            return False
        if around_operator and node.start > around_operator[0].end:
            return False
        nodes = [r for r in self.ranges if r.nested and r.is_backward_operator]
        number = self.number(node, nodes)
        outer = [
            r for r in self.around(node, nodes)
            if r.sort_key() < node.sort_key() and self.number(r, nodes) not in (None, number)
        ]  # fmt: skip
        return not outer or (outer[-1].thread == operator.thread and outer[-1].start <= operator.start)

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
