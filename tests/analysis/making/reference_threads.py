"""Of the slow reference: which threads' work others adopt, and who waits for it (docs/attribution.md)."""

import re
from functools import cached_property, wraps

from tests.analysis.making.building import process_of

PHASE_WORDS = ("forward", "backward", "optimizer")
WORKERS = ("pt_data_pin", "pt_nccl_watchdg")
ENGINE = "autograd::engine::evaluate_function: "


def launch_of(rows, work):
    """Return the API call of the same process and correlation id: CUDA's own row first, then the earliest."""
    same = [
        call
        for call in rows.launches
        if call.correlation == work.correlation is not None and process_of(call.thread) == work.process
    ]
    return min(same, key=lambda call: (call.event_class not in (0, 1), call.start), default=None)


def remembered(ask):
    """Remember what was answered of each thread."""

    @wraps(ask)
    def answer(self, thread):
        known = self.__dict__.setdefault(f"_{ask.__name__}", {})
        return known[thread] if thread in known else known.setdefault(thread, ask(self, thread))

    return answer


class Threads:
    """What is asked of threads; a subclass has the rows, their ranges, and says which are around an event."""

    @cached_property
    def calls(self):
        """The API calls that caused work."""
        found = {id(call): call for work in self.rows.work if (call := launch_of(self.rows, work))}
        return list(found.values())

    @remembered
    def devices(self, thread):
        """Return the GPUs that a thread gave work to."""
        mine = {id(call) for call in self.calls if call.thread == thread}
        return {work.device for work in self.rows.work if id(launch_of(self.rows, work)) in mine}

    def name(self, thread):
        return self.rows.thread_names.get(thread, "")

    def is_main(self, thread):
        return thread & 0xFFFFFF == thread >> 24 & 0xFFFFFF

    def has_of_its_own(self, thread, words):
        """Return whether a thread has a range of such a name that autograd's engine did not open."""
        return self.opens_itself([r for r in self.users if r.thread == thread and r.is_called(words)])

    def opens_itself(self, ranges):
        engine = [r for r in self.ranges if r.name.startswith(ENGINE) or r.part == "model/backward"]
        return any(not self.around(r, engine) for r in ranges)

    @remembered
    def calls_models(self, thread):
        """Return whether a program calls a model on a thread, and not backward, which computes again."""
        again = [r for r in self.users if r.is_computed_again]
        mine = [r for r in self.users if r.thread == thread and r.part == "model/forward"]
        return self.opens_itself([r for r in mine if not self.around(r, again)])

    @remembered
    def is_independent(self, thread):
        return self.has_of_its_own(thread, ("step", "warmup", "backward"))

    @remembered
    def is_phased(self, thread):
        return self.has_of_its_own(thread, PHASE_WORDS)

    @remembered
    def runs_nodes(self, thread):
        nodes = [r for r in self.ranges if r.name.startswith(ENGINE) or r.part == "model/backward"]
        return any(r.thread == thread for r in nodes)

    @remembered
    def makes_nodes(self, thread):
        """Return whether forward runs on a thread: an operator with a number, in no range of autograd's engine."""
        numbered = [r for r in self.ranges if r.nested and r.thread == thread and r.seq is not None]
        return self.opens_itself([r for r in numbered if not r.is_backward_operator])

    @remembered
    def says_autograd(self, thread):
        own = self.is_independent(thread) or self.is_phased(thread) or self.calls_models(thread)
        own = own or self.makes_nodes(thread)
        return not self.is_main(thread) and (
            "autograd" in self.name(thread) or (self.runs_nodes(thread) and not own)
        )

    @remembered
    def is_adopted(self, thread):
        if thread not in {call.thread for call in self.calls}:
            return False
        if self.name(thread) in WORKERS or self.is_main(thread):
            return False
        return self.says_autograd(thread) or self.behaves_like_one(thread)

    def is_known_autograd(self, thread):
        return self.is_adopted(thread) and self.says_autograd(thread)

    def behaves_like_one(self, thread):
        mine = [call for call in self.calls if call.thread == thread]
        kernels = [w for w in self.rows.work if w.kind in ("kernel", "graph")]
        if self.is_independent(thread):
            return False
        if not any(launch_of(self.rows, w) in mine for w in kernels):
            return all(any(self.waits_in_nccl(t, call) for t in self.could_wait(thread)) for call in mine)
        could = self.could_wait(thread)
        judges = [t for t in could if any(call.thread == t for call in self.calls)] or could
        watched = [call for call in mine if any(self.around(call, self.users, t) for t in judges)]
        waiting = [[t for t in self.waiting(call) if t in judges] for call in watched]
        if not watched or not all(waiting):
            return False
        in_backward = [
            any(self.in_backward(t, call) for t in ts) for ts, call in zip(waiting, watched, strict=True)
        ]
        fellows = [t for t in self.threads if process_of(t) == process_of(thread)]
        if any("autograd" in self.name(t) or self.runs_nodes(t) for t in fellows):
            return not self.is_phased(thread) and not any(in_backward)
        return all(in_backward) if self.is_phased(thread) else len(set(in_backward)) >= 1

    @remembered
    def could_wait(self, thread):
        return [
            t
            for t in self.threads
            if t != thread
            and process_of(t) == process_of(thread)
            and self.name(t) not in WORKERS
            and not self.says_autograd(t)
            and any(r.thread == t for r in self.users)
        ]

    @remembered
    def turns(self, thread):
        """Return the moments at which a thread opens or closes a range."""
        return [t for r in self.ranges if r.thread == thread for t in (r.start, r.end)]

    def quiet(self, thread, start, end):
        """Return whether a thread makes no CUDA call and opens or closes no range from start to end."""
        calls = [c for c in self.rows.launches if c.thread == thread and c.start <= end and c.end >= start]
        return not calls and not any(start <= t <= end for t in self.turns(thread))

    def in_backward(self, thread, event):
        return any(r.phase == "backward" for r in self.around(event, self.users, thread))

    def waits(self, thread, event):
        """Return whether a thread has a range open around the event, and is quiet meanwhile."""
        if not self.around(event, self.users, thread):
            return False
        return self.quiet(thread, event.start, event.end) or self.is_inside_a_call(thread, event)

    def waits_in_nccl(self, thread, event):
        nccl = [r for r in self.ranges if r.nested and re.match("nccl[A-Z]", r.name)]
        return self.waits(thread, event) and bool(self.around(event, nccl, thread))

    def is_inside_a_call(self, thread, event):
        """Return whether a thread, alone in backward, is inside one call for the whole burst around the event."""
        if [t for t in self.could_wait(event.thread) if self.in_backward(t, event)] != [thread]:
            return False
        begun = [c.start for c in self.rows.launches if c.thread == thread]

        def steady(start, end):
            return not any(start <= t <= end for t in (*begun, *self.turns(thread)))

        burst = [
            c for c in self.calls
            if c.thread == event.thread and steady(min(c.start, event.start), max(c.end, event.end))
        ]  # fmt: skip
        last = max([event.end, *(c.end for c in burst)])
        calls = [c for c in self.rows.launches if c.thread == thread and c.start < event.start]
        return steady(event.start, event.end) and any(c.end >= last for c in calls)

    def waiting(self, event):
        """Return the threads that wait for the event."""
        return [t for t in self.could_wait(event.thread) if self.waits(t, event)]

    def burst(self, thread, event):
        """Return the calls around the event between whose first and last the thread stays quiet."""
        return [
            c
            for c in self.calls
            if c.thread == event.thread and self.quiet(thread, min(c.start, event.start), max(c.end, event.end))
        ]

    def base(self, event):
        """Return the path of the thread that waits for an event of an adopted thread, and how that was decided."""
        if not self.is_adopted(event.thread):
            return (), None
        # What is adopted by behaviour adopts only what is known to be autograd's.
        known = self.says_autograd(event.thread)
        waiting = [t for t in self.waiting(event) if known or not self.is_adopted(t)]
        if not waiting:
            return (), None
        rank = {t: self.rank(t, event) for t in waiting}
        best = [t for t in waiting if rank[t] == max(rank.values())]
        first = [t for t in best if all(o == t or self.outlasts(t, o, event) for o in best)]
        return (self.around(event, self.users, first[0]), "adopted") if first else ((), "ambiguous")

    def rank(self, thread, event):
        mine, theirs = self.devices(thread), self.devices(event.thread)
        here = bool(mine & theirs)
        return here or not mine, self.in_backward(thread, event), here

    def outlasts(self, one, other, event):
        """Return whether one thread waited for a longer burst, and the other was busy during some of it."""
        mine, theirs = self.burst(one, event), self.burst(other, event)
        return len(mine) > len(theirs) and any(not self.waits(other, call) for call in mine)
