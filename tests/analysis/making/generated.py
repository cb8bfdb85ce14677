"""Generated reports: `chaos` puts anything anywhere; `programs` train, wait for autograd, and have workers.

`chaos` is drawn event by event and shrinks well. A program comes from one drawn seed, which is ten times as fast.
Every range has a name of its own, so that a path of names is a path of ranges.
"""

from dataclasses import replace
from random import Random

from hypothesis import strategies as st

from tests.analysis.making.building import (
    AUTOGRAD,
    DOMAIN_CREATE,
    MAIN,
    MODEL_BACKWARD,
    MODEL_FORWARD,
    OWN_DOMAIN,
    PUSH_POP,
    START_END,
    WORKER,
    Launch,
    Node,
    Range,
    Rows,
    Work,
    annotation,
    process_of,
    thread,
)
from tests.analysis.making.reference import ENGINE, KINDS

THREADS = (MAIN, AUTOGRAD, WORKER, thread(200), thread(200, 101))
# With it, ranges that are called step are never an optimizer's update alone.
UPDATE = Range("optimizer 0", 0, 1, thread(999))
NAMES = ("", "", "python", "pt_autograd_0", "pt_data_pin", "pt_nccl_watchdg")
USERS = ("layer", "layer", "layer", "step", "warmup", "forward", "backward", "optimizer")
WORDS = (*USERS, "aten::mm", "aten::mm", "node", "node", "accumulate", "ncclGroup")
DOMAIN_NAMES = {1: "mine", 2: "NCCL"}  # 0 is the default domain, and 3 has no name
MODULES = ("module", "module", "module", "forward", "backward", "step", "optimizer", "warmup", "recompute")


def named(word, number, seq):
    """Return the names of the range, or of the ranges around one another, that a word stands for."""
    made = "add" if number % 4 == 3 else "mm"
    if word == "node":
        name = f"{made.title()}Backward{number}"
        return [f"{ENGINE}{name}", f"{name}, seq = {seq}, op_id = {number}"]
    if word == "accumulate":
        return [f"{ENGINE}torch::autograd::AccumulateGrad{number}"]
    if word == "aten::mm":
        return [f"aten{number}::{made}, seq = {seq}, op_id = {number}, sizes = [[2, 3], [3, 4]]"]
    if word == "recompute":
        return [word]
    return [f"{word}{number}" if word == "ncclGroup" else f"{word} {number}"]


SHORT = st.integers(0, 6)
EVENT = st.tuples(st.integers(0, len(THREADS) - 1), st.integers(0, 24), SHORT)
ODD = st.tuples(
    EVENT, st.integers(0, len(WORDS) - 1), st.integers(0, 3), st.integers(0, 3), st.integers(0, 11)
)  # where, word, seq, domain, and of twelve one is a start/end range and one was never closed
CALL = st.tuples(EVENT, st.integers(0, 4), SHORT)  # where, the kinds of its work, how long that takes

NODE = st.tuples(EVENT, st.integers(0, 12))  # where, and which is its original, if that came before


def drawn_ranges(odds):
    """Turn drawn tuples into ranges; the inner one of a pair starts and ends a little inside the outer."""
    ranges = []
    for number, ((who, start, length), word, seq, domain, oddity) in enumerate(odds):
        for inset, name in enumerate(named(WORDS[word], number, seq)):
            event = START_END if oddity == 1 else PUSH_POP
            last = start + 3 * max(length, len(WORDS[word]) == 4) - inset
            end = None if oddity == 0 and not inset else last
            ours = oddity in (2, 3, 4)
            domain, category = (OWN_DOMAIN, oddity - 1) if ours else (domain, 0)
            ranges.append(Range(name, start + inset, end, THREADS[who], domain, event, category))
    return ranges


def drawn_calls(calls):
    """Turn drawn tuples into launches and work; kind 4 is a call without work; two processes share ids."""
    launches, work = [], []
    for number, ((who, start, length), kind, lasts) in enumerate(calls):
        call = Launch(number // 2, start, start + length % 3, THREADS[who])
        if number % 7 != 6:
            launches.append(call)
        if kind < 4:
            kernel = Work(call.correlation, call.end + lasts, call.end + 3 * lasts, "k" if kind == 0 else 1)
            work.append(Work(**{**vars(kernel), "kind": KINDS[kind], "process": process_of(call.thread)}))
    return launches, work


def drawn_nodes(drawn):
    """Turn drawn tuples into the creations of graph nodes, some of them clones of others."""
    return [
        Node(number, start, THREADS[who], original if original < number and number else None)
        for number, ((who, start, _), original) in enumerate(drawn)
    ]


def of_nodes(work, nodes):
    """Have graph nodes make some of the work; an id without a node is among them."""
    return (
        [replace(w, node=n % (len(nodes) + 1) if n % 3 else None) for n, w in enumerate(work)] if nodes else work
    )


def domain_rows(threads):
    """Return the rows that name the domains of the threads' processes."""
    mains = sorted({thread(t >> 24 & 0xFFFFFF) for t in threads})
    named = [Range(n, -5, None, t, d, DOMAIN_CREATE) for t in mains for d, n in DOMAIN_NAMES.items()]
    return [*named, *(row for t in mains for row in annotation(t))]


@st.composite
def chaos(draw):
    """Draw a report of anything anywhere."""
    ranges = drawn_ranges(draw(st.lists(ODD, max_size=8)))
    launches, work = drawn_calls(draw(st.lists(CALL, min_size=1, max_size=8)))
    nodes = drawn_nodes(draw(st.lists(NODE, max_size=4)))
    names = draw(st.tuples(*[st.integers(0, len(NAMES) - 1)] * len(THREADS)))
    given = {t: NAMES[n] for t, n in zip(THREADS, names, strict=True) if NAMES[n]}
    return Rows([*domain_rows(THREADS), UPDATE, *ranges], launches, of_nodes(work, nodes), given, nodes=nodes)


class Program:
    """A simulated run: main threads train and wait for autograd's, beside them workers and a second trainer."""

    def __init__(self, seed):
        self.random, self.now, self.number, self.seq = Random(seed), 0, 0, 0
        self.rows, self.open, self.correlation, self.device = Rows(), {}, {}, {}
        self.graphs = self.random.choice((0, 0, 0, 0.4))

    def run(self):
        """Run one or two processes, and return the rows as the file holds them: in any order."""
        for process in (100, 200)[: self.random.choice((1, 1, 2))]:
            self.now = self.random.randrange(3)
            self.process(process)
        self.replay()
        for rows in (self.rows.ranges, self.rows.launches, self.rows.work):
            if self.random.random() < 0.5:
                self.random.shuffle(rows)
        self.rows.ranges.extend([*domain_rows([r.thread for r in self.rows.ranges]), UPDATE])
        return self.rows

    def replay(self):
        """Have nodes of CUDA graphs, created where launches were, make some of the kernels."""
        calls = [call for call in self.rows.launches if self.random.random() < self.graphs]
        for number, call in enumerate(calls):
            original = self.random.randrange(number) if number and self.random.random() < 0.3 else None
            self.rows.nodes.append(Node(number, call.start + self.random.randrange(2), call.thread, original))
        for place, work in enumerate(self.rows.work if calls else ()):
            if self.random.random() < 0.5:
                self.rows.work[place] = replace(work, node=self.random.randrange(len(calls) + 1))

    def process(self, process):
        main, engine, worker, trainer, helper, idle = (
            thread(process, tid) for tid in (None, 101, 102, 103, 104, 105)
        )
        pick, annotated = self.random.choice, self.random.random() < 0.5
        self.modules = self.random.random() < 0.5
        self.name(engine, pick(("pt_autograd_0", "", "", "python")))
        self.name(worker, pick(("pt_data_pin", "pt_nccl_watchdg", "", "")))
        self.device = {who: pick((0, 0, 0, 1)) for who in (main, engine, trainer)}
        busy = pick(((), (worker,), (worker, trainer), (trainer,)))
        helpers = pick(((), (), (helper,)))
        if self.random.random() < 0.2:
            self.act(idle, pick(("layer", "layer", "backward")))
            self.begin(idle, "layer")
        for _ in range(self.random.randint(1, 3)):
            begun = self.begin(main, pick(("step", "step", "warmup", "layer", None)))
            self.forward(main, helpers, busy)
            self.backward(main, pick((engine, engine, engine, main)), busy, annotated)
            self.finish(main, begun)
        for left in (main, engine, worker, trainer, helper, idle):
            self.finish(left, 0)

    def forward(self, main, helpers, busy):
        begun = self.begin(main, self.random.choice(("forward", "forward", "layer", None)))
        for _ in range(self.random.randint(0, 8)):
            self.act(main, self.random.choice(("layer", "layer", "aten::mm", "aten::mm", "ncclGroup")))
            self.module(main, MODEL_FORWARD)
            self.disturb(busy)
        for helper in helpers:
            for _ in range(self.random.randint(0, 3)):
                self.act(helper, self.random.choice(("layer", "aten::mm", "aten::mm", "forward", None)))
                self.module(helper, MODEL_FORWARD)
            self.finish(helper, 0)
        self.finish(main, begun)

    def backward(self, main, engine, busy, annotated):
        begun = self.begin(main, self.random.choice(("backward", "backward", "layer", None)))
        words = (
            "node",
            "node",
            "node",
            "node",
            "accumulate",
            "layer",
            "aten::mm",
            "aten::mm",
            "forward",
            "optimizer",
        )
        long_call = self.tick() if self.random.random() < 0.15 else None
        for _ in range(self.random.randint(0, 8)):
            self.act(engine, self.random.choice(words if annotated else (None, None, None, "forward")))
            self.module(engine, self.random.choice((MODEL_BACKWARD, MODEL_BACKWARD, MODEL_FORWARD)))
            self.disturb(busy)
        if long_call is not None:
            self.launch(main, start=long_call)
        if self.random.random() < 0.8:
            self.finish(engine, 0)
        self.finish(main, begun)

    def act(self, who, word, category=0):
        """Open a range, close one, launch something, or all three."""
        action = self.random.choice(("open", "close", "launch", "launch", "all", "all", "all"))
        begun = self.begin(who, word, category) if action in ("open", "all") else 0
        if action in ("launch", "all"):
            self.launch(who)
        if action == "all":
            self.finish(who, begun)
        elif action == "close" and self.open.get(who):
            self.close(who, self.random.choice((-1, -1, -1, 0)))

    def module(self, who, category):
        """Sometimes do what an annotated module does; what it is called says nothing."""
        if self.modules and self.random.random() < 0.6:
            self.act(who, self.random.choice(MODULES), category)

    def disturb(self, busy):
        for who in busy:
            if self.random.random() < 0.2:
                self.act(who, self.random.choice(("layer", "step", None)))

    def tick(self):
        self.now += self.random.choice((0, 1, 1, 2, 4))
        return self.now

    def name(self, who, text):
        if text:
            self.rows.thread_names[who] = text

    def begin(self, who, word, category=0):
        """Open the ranges of a word, and return how many were open before."""
        stack = self.open.setdefault(who, [])
        before, seq = len(stack), self.random.randint(max(0, self.seq - 4), self.seq)
        self.seq += word == "aten::mm" and self.random.random() < 0.7
        self.number += 1
        domain = self.random.choice((0, 0, 0, 0, 1, 2, 3)) if word in ("layer", "ncclGroup") else 0
        domain = OWN_DOMAIN if category else domain
        for name in named(word, self.number, self.seq if word == "aten::mm" else seq) if word else ():
            stack.append((name, self.tick(), domain, category))
            self.now += word == "node"
        return before

    def close(self, who, at):
        name, start, domain, category = self.open[who].pop(at)
        end = None if self.random.random() < 0.02 else self.tick()
        event = START_END if self.random.random() < 0.03 and "Backward" not in name else PUSH_POP
        self.rows.ranges.append(Range(name, start, end, who, domain, event, category))

    def finish(self, who, before):
        while len(self.open.get(who, ())) > before:
            self.close(who, -1)

    def launch(self, who, start=None):
        """Make a call of a few pieces of work, of which some have no row, and some rows are there twice."""
        chance, process = self.random.random(), process_of(who)
        number = self.correlation[process] = self.correlation.get(process, 0) + 1
        start, end = self.tick() if start is None else start, self.tick()
        self.rows.launches.extend([Launch(number, start, end, who)] * (chance > 0.05))
        self.rows.launches.extend([Launch(number, start - 1, end, who, 67)] * (chance > 0.95))
        for _ in range(self.random.choice((0, 1, 1, 1, 3))):
            kind, begun = self.random.choice((*KINDS, "kernel", "kernel")), end + self.random.randrange(5)
            name, device = "k" if kind == "kernel" else 1, self.device.get(who, 0)
            self.rows.work.append(
                Work(number, begun, begun + self.random.randrange(9), name, kind, process, device)
            )


programs = st.integers(0, 2**48).map(lambda seed: Program(seed).run())
