"""Generated reports: `chaos` puts anything anywhere; `programs` train, wait for autograd, and have workers.

`chaos` is drawn event by event and shrinks well. A program comes from one drawn seed, which is ten times as fast.
Every range has a name of its own, so that a path of names is a path of ranges.
"""

from random import Random

from hypothesis import strategies as st

from tests.analysis.building import (
    AUTOGRAD,
    DOMAIN_CREATE,
    MAIN,
    PUSH_POP,
    START_END,
    WORKER,
    Launch,
    Range,
    Rows,
    Work,
    process_of,
    thread,
)
from tests.analysis.reference import ENGINE, KINDS

THREADS = (MAIN, AUTOGRAD, WORKER, thread(200), thread(200, 101))
NAMES = ("", "", "python", "pt_autograd_0", "pt_data_pin", "pt_nccl_watchdg")
USERS = ("layer", "layer", "layer", "step", "warmup", "forward", "backward", "optimizer")
WORDS = (*USERS, "aten::mm", "aten::mm", "node", "node", "accumulate", "ncclGroup")
DOMAIN_NAMES = {1: "mine", 2: "NCCL"}  # 0 is the default domain, and 3 has no name


def named(word, number, seq):
    """Return the names of the range, or of the ranges around one another, that a word stands for."""
    if word == "node":
        return [f"{ENGINE}MmBackward{number}", f"MmBackward{number}, seq = {seq}, op_id = {number}"]
    if word == "accumulate":
        return [f"{ENGINE}torch::autograd::AccumulateGrad{number}"]
    if word == "aten::mm":
        return [f"aten::mm{number}, seq = {seq}, op_id = {number}, sizes = [[2, 3], [3, 4]]"]
    return [f"{word}{number}" if word == "ncclGroup" else f"{word} {number}"]


SHORT = st.integers(0, 6)
EVENT = st.tuples(st.integers(0, len(THREADS) - 1), st.integers(0, 24), SHORT)
ODD = st.tuples(
    EVENT, st.integers(0, len(WORDS) - 1), st.integers(0, 3), st.integers(0, 3), st.integers(0, 11)
)  # where, word, seq, domain, and of twelve one is a start/end range and one was never closed
CALL = st.tuples(EVENT, st.integers(0, 4), SHORT)  # where, the kinds of its work, how long that takes


def drawn_ranges(odds):
    """Turn drawn tuples into ranges; the inner one of a pair starts and ends a little inside the outer."""
    ranges = []
    for number, ((who, start, length), word, seq, domain, oddity) in enumerate(odds):
        for inset, name in enumerate(named(WORDS[word], number, seq)):
            event = START_END if oddity == 1 else PUSH_POP
            last = start + 3 * max(length, len(WORDS[word]) == 4) - inset
            end = None if oddity == 0 and not inset else last
            ranges.append(Range(name, start + inset, end, THREADS[who], domain, event))
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


def domain_rows(threads):
    """Return the rows that name the domains of the threads' processes."""
    mains = sorted({thread(t >> 24 & 0xFFFFFF) for t in threads})
    return [Range(n, -5, None, t, d, DOMAIN_CREATE) for t in mains for d, n in DOMAIN_NAMES.items()]


@st.composite
def chaos(draw):
    """Draw a report of anything anywhere."""
    ranges = drawn_ranges(draw(st.lists(ODD, max_size=8)))
    launches, work = drawn_calls(draw(st.lists(CALL, min_size=1, max_size=8)))
    names = draw(st.tuples(*[st.integers(0, len(NAMES) - 1)] * len(THREADS)))
    given = {t: NAMES[n] for t, n in zip(THREADS, names, strict=True) if NAMES[n]}
    return Rows([*domain_rows(THREADS), *ranges], launches, work, given)


class Program:
    """A simulated run: main threads train and wait for autograd's, beside them workers and a second trainer."""

    def __init__(self, seed):
        self.random, self.now, self.number, self.seq = Random(seed), 0, 0, 0
        self.rows, self.open, self.correlation = Rows(), {}, {}

    def run(self):
        """Run one or two processes, and return the rows as the file holds them: in any order."""
        for process in (100, 200)[: self.random.choice((1, 1, 2))]:
            self.now = self.random.randrange(3)
            self.process(process)
        for rows in (self.rows.ranges, self.rows.launches, self.rows.work):
            if self.random.random() < 0.5:
                self.random.shuffle(rows)
        self.rows.ranges.extend(domain_rows([r.thread for r in self.rows.ranges]))
        return self.rows

    def process(self, process):
        main, engine, worker, trainer = (thread(process, tid) for tid in (None, 101, 102, 103))
        pick, annotated = self.random.choice, self.random.random() < 0.5
        self.name(engine, pick(("pt_autograd_0", "", "", "python")))
        self.name(worker, pick(("pt_data_pin", "pt_nccl_watchdg", "", "")))
        busy = pick(((), (worker,), (worker, trainer), (trainer,)))
        for _ in range(self.random.randint(1, 3)):
            begun = self.begin(main, pick(("step", "step", "warmup", "layer", None)))
            self.forward(main, busy)
            self.backward(main, pick((engine, engine, engine, main)), busy, annotated)
            self.finish(main, begun)
        for left in (main, engine, worker, trainer):
            self.finish(left, 0)

    def forward(self, main, busy):
        begun = self.begin(main, self.random.choice(("forward", "forward", "layer", None)))
        for _ in range(self.random.randint(0, 8)):
            self.act(main, self.random.choice(("layer", "layer", "aten::mm", "aten::mm", "ncclGroup")))
            self.disturb(busy)
        self.finish(main, begun)

    def backward(self, main, engine, busy, annotated):
        begun = self.begin(main, self.random.choice(("backward", "backward", "layer", None)))
        words = ("node", "node", "node", "accumulate", "layer") if annotated else (None,)
        for _ in range(self.random.randint(0, 8)):
            self.act(engine, self.random.choice(words))
            self.disturb(busy)
        if self.random.random() < 0.8:
            self.finish(engine, 0)
        self.finish(main, begun)

    def act(self, who, word):
        """Open a range, close one, launch something, or all three."""
        action = self.random.choice(("open", "close", "launch", "launch", "all", "all", "all"))
        begun = self.begin(who, word) if action in ("open", "all") else 0
        if action in ("launch", "all"):
            self.launch(who)
        if action == "all":
            self.finish(who, begun)
        elif action == "close" and self.open.get(who):
            self.close(who, self.random.choice((-1, -1, -1, 0)))

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

    def begin(self, who, word):
        """Open the ranges of a word, and return how many were open before."""
        stack = self.open.setdefault(who, [])
        before, seq = len(stack), self.random.randint(max(0, self.seq - 4), self.seq)
        self.seq += word == "aten::mm" and self.random.random() < 0.7
        self.number += 1
        domain = self.random.choice((0, 0, 0, 0, 1, 2, 3)) if word in ("layer", "ncclGroup") else 0
        for name in named(word, self.number, self.seq if word == "aten::mm" else seq) if word else ():
            stack.append((name, self.tick(), domain))
            self.now += word == "node"
        return before

    def close(self, who, at):
        name, start, domain = self.open[who].pop(at)
        end = None if self.random.random() < 0.02 else self.tick()
        event = START_END if self.random.random() < 0.03 and "Backward" not in name else PUSH_POP
        self.rows.ranges.append(Range(name, start, end, who, domain, event))

    def finish(self, who, before):
        while len(self.open.get(who, ())) > before:
            self.close(who, -1)

    def launch(self, who):
        """Make a call of a few pieces of work, of which some have no row, and some rows are there twice."""
        chance, process = self.random.random(), process_of(who)
        number = self.correlation[process] = self.correlation.get(process, 0) + 1
        start, end = self.tick(), self.tick()
        self.rows.launches.extend([Launch(number, start, end, who)] * (chance > 0.05))
        self.rows.launches.extend([Launch(number, start - 1, end, who, 67)] * (chance > 0.95))
        for _ in range(self.random.choice((0, 1, 1, 1, 3))):
            kind, begun = self.random.choice((*KINDS, "kernel", "kernel")), end + self.random.randrange(5)
            name = "k" if kind == "kernel" else 1
            self.rows.work.append(Work(number, begun, begun + self.random.randrange(9), name, kind, process))


programs = st.integers(0, 2**48).map(lambda seed: Program(seed).run())
