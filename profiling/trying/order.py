"""The order in which a program's changes are tried.

    record ──► screen ──────────────► confirm ─────────────────────► together
               all that can be         a process each: what saved,    what is used,
               switched, one process;  what cannot be switched,       in one process
               again with what saves   between runs as it is;
               most on; small gains    what may save most first
               twice

The budget bounds all of it: nothing begins that does not seem to fit, and what runs a fifth too long is cut off.

A screen that an arm ends (it fails) goes on in another process without it, and so does one whose program is short.
Nothing is screened under torchrun, whose ranks would not switch together: every arm has processes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from nvtx_kernels.analysis.support.units import counted

from ..cli import CommandError
from .courses import plan_of, rounds_of
from .judging import (
    BIG,
    BLOCKS_DIFFER,
    PROCESSES_DIFFER,
    SMALL,
    WORTH,
    Arm,
    Gain,
    Visit,
    best_of_each_kind,
    contradicts,
    intervals_of,
    judge,
    spread_of,
    step_of,
)
from .keeper import Keeper, Outcome
from .levers import AGAINST, BY_NAME, LEVERS
from .results import Ending, Job, LeverFacts, is_worth_a_run

#: What a run may take, s, after one of the program as it is: this many times that.
LEAST_S, TIMES_LONGEST = 60.0, 4.0
#: What compiling may take on top, s.
COMPILING_S = 240.0
LEAST_SCREEN_S = 15.0
#: The shares of the budget after which a recording is cut off, no screen begins, one is cut off, and any run is.
RECORDING, SCREENING, SCREENED, RUNNING = 0.35, 0.5, 0.7, 1.2
#: How many arms that save most are left on, and how many arms lie between two runs of the program as it is.
MOST_ON, BETWEEN = 2, 2
#: How often what a screen could not decide is screened further.
MOST_AGAIN = 2
ROUNDS_TOGETHER = 3
TOGETHER = "together"
CANNOT_BE_TRIED = "The program cannot be tried: {}"
TOO_SHORT = "the budget of {:.0f} s ended before its steps could be measured: give a longer --budget"


@dataclass(frozen=True)
class Program:
    """A program: its words, whether they begin with a module, and the options of the torchrun that starts it."""

    words: tuple[str, ...]
    is_module: bool = False
    launcher: tuple[str, ...] = ()


@dataclass(frozen=True)
class Choice:
    """What to try, and how long: names of levers (None: all), and another program.

    `steps` are counted in a process, `rounds` made of each arm, unless `budget_s` end before.
    """

    levers: tuple[str, ...] | None
    against: Program | None
    steps: int
    rounds: int
    budget_s: float


@dataclass
class Answer:
    """What was tried: the step without any change, ns, all arms, and those of them in one."""

    base_ns: float
    device: str
    arms: list[Arm]
    together: Arm | None
    seconds: float
    skipped: dict[str, str] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    is_interrupted: bool = False


class Trying:
    """Tries the changes of a program; `say` gets what is being done."""

    def __init__(
        self,
        keeper: Keeper,
        program: Program,
        choice: Choice,
        say: Callable[[str], None],
    ) -> None:
        self.keeper = keeper
        self.program = program
        self.choice = choice
        self.say = say
        self._began_s = time.monotonic()
        self._run_s = 0.0
        self._arms: dict[str, Arm] = {}
        self._bases: list[Ending] = []
        self._facts: dict[str, LeverFacts] = {}
        self._blocks_ns: list[float] = []
        self._visits: list[Visit] = []
        self._on: list[str] = []
        self._refused: dict[str, None] = {}
        self._device = ""

    def record(self, report: Path) -> Path | None:
        """Record the program, and return the report's path, None where none was made."""
        self.say("recording")
        job = self._job(Job("record", [], report=str(report)))
        outcome = self.keeper.run(job, self._until(RECORDING))
        if self.keeper.is_stopped:
            raise KeyboardInterrupt
        self._run_s = outcome.seconds
        reports = [report, report.with_name(f"{report.stem}.rank0{report.suffix}")]
        return next((path for path in reports if path.exists()), None)

    def go(self, arms: Sequence[Arm]) -> Answer:
        """Try arms, and return what came of it, also if the keeper is stopped meanwhile.

        Raises CommandError for a program that cannot be tried, KeyboardInterrupt if nothing was measured.
        """
        self._arms = {arm.name: arm for arm in arms}
        can_switch = [arm for arm in arms if arm.lever and arm.lever.can_switch]
        if can_switch and self._may_screen and not self.program.launcher:
            can_switch.sort(key=_patience)
            self._screen([arm.name for arm in can_switch])
        self._confirm()
        if not (self._blocks_ns or self._visits):  # the program has nothing that could be changed
            self._base_run()
        if not (self._blocks_ns or self._visits):
            raise self._out_of_time()
        for arm in self._arms.values():
            judge(arm, self._bases, self._on)
        together = self._together()
        tried, skipped = self._divided()
        return Answer(
            base_ns=self._base_ns,
            device=self._device,
            arms=tried,
            together=together,
            seconds=time.monotonic() - self._began_s,
            skipped=skipped,
            refused=[*self._refused],
            is_interrupted=self.keeper.is_stopped,
        )

    # Screens

    def _screen(self, names: list[str]) -> None:
        latest = self._screened(names)
        for name, gain in latest.items():
            self._arms[name].alone = gain
        while len(self._on) < MOST_ON and self._may_screen:
            big = [name for name, gain in latest.items() if gain.is_sure and gain.share >= BIG]
            if not big:
                break
            biggest = max(big, key=lambda name: latest[name].share)
            self._on.append(biggest)
            to_go_on = self._to_go_on(latest)
            latest = self._screened(to_go_on) if to_go_on else {}
            for name, gain in latest.items():
                self._arms[name].then = gain
        small = [name for name, gain in latest.items() if gain.is_sure and gain.share < SMALL]
        again = self._screened(small) if small and self._may_screen else {}
        for name in small:
            arm = self._arms[name]
            if self._on:
                arm.then = again.get(name)
            else:
                arm.alone = again.get(name)

    def _to_go_on(self, names: Iterable[str]) -> list[str]:
        """Return the arms that may help beside those that are on: none of their kinds, and none that failed."""
        kinds = {BY_NAME[name].kind for name in self._on} - {""}
        others = [name for name in names if name not in self._on and self._is_open(name)]
        return [name for name in others if BY_NAME[name].kind not in kinds]

    def _screened(self, names: list[str]) -> dict[str, Gain]:
        """Return the gains of arms by blocks of steps, in as many processes of the program as that takes."""
        self.say(f"screening {counted(len(names), 'change')}")
        outcome = self._run(self._screen_job(names, self.choice.rounds), compiles=True, share=SCREENED)
        if outcome.is_cut and self._facts and not outcome.written.seen:
            return {}
        facts = self._facts_of(outcome)
        worth = [name for name in names if is_worth_a_run(facts.get(name))]
        plan = plan_of(worth, rounds_of(len(worth), self.choice.rounds))
        series: list[list[Visit]] = []
        again = MOST_AGAIN
        while True:
            visits = self._visits_of(outcome)
            series.append(visits)
            if outcome.written.seen_after_s:  # a recording takes longer than a run
                self._run_s = outcome.written.seen_after_s + self.choice.steps * self._base_ns / 1e9
            self._take_failures(outcome)
            compared = _between_bases(visits)
            for arm in compared:
                plan.remove(arm)
            plan = [name for name in plan if self._is_open(name)]
            gains = self._gains(series)
            is_stuck = not compared and not outcome.written.arm
            if not plan and again:
                again -= 1
                undecided = [name for name, gain in gains.items() if gain.is_undecided and self._is_open(name)]
                undecided.sort(key=lambda name: -gains[name].share)
                plan = plan_of(undecided, self.choice.rounds)
            if not plan or is_stuck or not self._may_screen:
                return gains
            outcome = self._run(self._screen_job(plan, 0), compiles=True, share=SCREENED)

    def _is_open(self, name: str) -> bool:
        arm = self._arms[name]
        return not (arm.lost or arm.is_cut)

    def _screen_job(self, plan: list[str], rounds: int) -> Job:
        return Job(
            "screen",
            [],
            on=[*self._on],
            watched=self._watched(),
            plan=plan,
            rounds=rounds,
            seconds=max(self._until(1.0) * SCREENING, LEAST_SCREEN_S),
        )

    def _visits_of(self, outcome: Outcome) -> list[Visit]:
        visits = []
        for block in outcome.written.blocks:
            step_ns = median(block.step_ns)
            visits.append(Visit(block.arm, step_ns, spread_of(block.step_ns)))
            if block.arm:
                arm = self._arms[block.arm]
                usual_s = len(block.settling_s) * step_ns / 1e9
                arm.cold_s = max(arm.cold_s, sum(block.settling_s) - usual_s)
            elif not self._on:
                self._blocks_ns.append(step_ns)
        return visits

    def _gains(self, series: Sequence[Sequence[Visit]]) -> dict[str, Gain]:
        bases = [visit.step_ns for visits in series for visit in visits if not visit.arm]
        valid = [[visit for visit in visits if not self._has_failed(visit)] for visits in series]
        intervals = intervals_of(valid, BLOCKS_DIFFER)
        after = tuple(self._on)
        return {name: Gain(interval, median(bases), after) for name, interval in intervals.items()}

    def _has_failed(self, visit: Visit) -> bool:
        return bool(visit.arm and self._arms[visit.arm].lost)

    def _facts_of(self, outcome: Outcome) -> dict[str, LeverFacts]:
        """Return the changes that the program allows; raises CommandError if it cannot be tried."""
        ending = outcome.written.ending
        facts = outcome.written.seen or (ending.levers if ending else {})
        ran = not outcome.error and ending and ending.steps
        if not outcome.written.seen and not ran:
            raise self._out_of_time() if outcome.is_cut else CommandError(_why_not(outcome))
        self._facts = self._facts or facts
        for name, of_lever in facts.items():
            arm = self._arms[name]
            arm.place = arm.place or of_lever.place
        return facts

    def _take_failures(self, outcome: Outcome) -> None:
        """Note which arm ended the screen, which changed nothing, and which raised what the program handled."""
        written, ending = outcome.written, outcome.written.ending
        if outcome.error and written.arm:
            arm = self._arms[written.arm]
            arm.is_cut = outcome.is_cut
            arm.lost = "" if outcome.is_cut else outcome.error
        if ending is None:
            return
        raised = {} if "" in ending.raised else ending.raised
        for name, text in raised.items():
            arm = self._arms[name]
            arm.lost = arm.lost or f"raises, and the program goes on: {text}"
        measured = {block.arm for block in written.blocks if block.arm}
        for name in measured:
            facts = ending.levers[name]
            if not facts.did:
                self._arms[name].lost = facts.trouble or CHANGED_NOTHING

    # Processes

    def _confirm(self) -> None:
        """Run what saved time, and what cannot be switched, a process each, between runs of the base."""
        watched = self._watched()
        if not self._facts and watched:
            outcome = self._run(Job("run", [], watched=watched))
            self._facts_of(outcome)
            self._run_s = outcome.seconds
        winners = [arm for arm in self._arms.values() if _is_winner(arm)]
        alone = [arm for arm in self._arms.values() if self._needs_processes(arm)]
        count = len(winners) + len(alone)
        if not count:
            return
        self.say(f"confirming {counted(count, 'change')}, a process each")
        rounds = rounds_of(max(len(alone), 1), self.choice.rounds)
        goes_on = True
        while goes_on:
            unsure = [arm for arm in winners if not arm.runs or (len(arm.runs) == 1 and contradicts(arm))]
            undecided = [arm for arm in alone if len(arm.runs) < rounds and not _is_decided(arm)]
            todo = [arm for arm in (*unsure, *undecided) if self._is_open(arm.name)]
            todo.sort(key=self._expected_ns, reverse=True)
            goes_on = self._compare(todo[:BETWEEN])
            intervals = intervals_of([self._visits], PROCESSES_DIFFER)
            for arm in alone:
                if arm.name in intervals:
                    arm.alone = Gain(intervals[arm.name], self._base_ns)
            for arm in winners:
                if arm.name in intervals:
                    arm.run_change = intervals[arm.name].change

    def _expected_ns(self, arm: Arm) -> float:
        """Return what an arm may save: what was measured, else predicted; first of all the program of the user."""
        if arm.gain is not None:
            return arm.gain.saved_ns
        if arm.predicted_ns is not None:
            return arm.predicted_ns[1]
        return (1.0 if arm.name == AGAINST else WORTH) * self._base_ns

    def _compare(self, arms: Sequence[Arm], on: Sequence[str] = ()) -> bool:
        """Run arms, as many as fit into the budget, between two runs of the base; return whether one was run."""
        bases = 1 if self._visits else 2
        fitting = arms[: max(0, self._runs_that_fit - bases)]
        if fitting and bases == 2:
            self._base_run()
        for arm in fitting:
            self._arm_run(arm, on)
        if fitting:
            self._base_run()
        return bool(fitting)

    def _needs_processes(self, arm: Arm) -> bool:
        if arm.alone is not None or not self._is_open(arm.name):
            return False
        return arm.lever is None or is_worth_a_run(self._facts.get(arm.name))

    def _base_run(self) -> None:
        """Run the program as it is, unless the budget cuts it off."""
        outcome = self._run(Job("run", []))
        ending = outcome.written.ending
        if outcome.is_cut:
            return
        if outcome.error or ending is None or not ending.step_ns:
            raise CommandError(_why_not(outcome))
        self._bases.append(ending)
        self._run_s = outcome.seconds
        self._visits.append(_visit("", ending))

    def _arm_run(self, arm: Arm, on: Sequence[str] = ()) -> None:
        """Run an arm once, which may fail."""
        of_arm = [arm.name] if arm.lever else []
        job = Job("run", [], on=[*on] or of_arm)
        compiles = any(BY_NAME[name].kind == "compile" for name in job.on)
        program = self.choice.against if arm.name == AGAINST else None
        outcome = self._run(job, compiles=compiles, program=program)
        ending = outcome.written.ending
        arm.is_cut = outcome.is_cut
        if arm.is_cut:
            return
        if outcome.error or ending is None or not ending.step_ns:
            arm.lost = outcome.error or "too few steps"
            return
        for name in job.on:
            facts = ending.levers[name]
            if not facts.did:
                arm.lost = facts.trouble or CHANGED_NOTHING
                return
            arm.place = arm.place or facts.place
        arm.runs.append(ending)
        if not arm.cold_s:
            arm.cold_s = max(0.0, ending.warm_up_s - self._bases[-1].warm_up_s)
        self._visits.append(_visit(arm.name, ending))

    def _together(self) -> Arm | None:
        """Run all that is worth it at once, None for fewer than two, and once the budget is spent."""
        used = best_of_each_kind(self._arms.values())
        if len(used) < 2 or self._runs_that_fit < 3:
            return None
        self.say("running all of them together")
        names = tuple(arm.name for arm in used)
        arm = Arm(TOGETHER)
        for _ in range(ROUNDS_TOGETHER):
            if arm.lost or not self._compare([arm], names):
                break
        intervals = intervals_of([self._visits], PROCESSES_DIFFER)
        if not arm.lost and TOGETHER in intervals:
            arm.alone = Gain(intervals[TOGETHER], self._base_ns)
        judge(arm, self._bases, ())
        arm.after = names
        return arm

    # Both

    @property
    def _base_ns(self) -> float:
        """The step of the program as it is: by blocks of a screen, else by runs; 0 before any."""
        runs_ns = [visit.step_ns for visit in self._visits if not visit.arm]
        return median(self._blocks_ns or runs_ns or [0.0])

    def _until(self, share: float) -> float:
        """Return the time until this share of the budget is spent, s; none is left once it was stopped."""
        spent_s = time.monotonic() - self._began_s
        return 0.0 if self.keeper.is_stopped else max(0.0, share * self.choice.budget_s - spent_s)

    @property
    def _may_screen(self) -> bool:
        return self._until(SCREENING) > 0

    @property
    def _runs_that_fit(self) -> int:
        """How many runs as long as the latest one the budget has time for; the first ones may end a bit later."""
        return int(self._until(1.0 if self._visits else RUNNING) / max(self._run_s, 1e-3))

    def _out_of_time(self) -> BaseException:
        if self.keeper.is_stopped:
            return KeyboardInterrupt()
        return CommandError(CANNOT_BE_TRIED.format(TOO_SHORT.format(self.choice.budget_s)))

    def _watched(self) -> list[str]:
        return [arm.name for arm in self._arms.values() if arm.lever and not arm.lost]

    def _job(self, job: Job, program: Program | None = None) -> Job:
        chosen = program or self.program
        return replace(
            job,
            program=list(chosen.words),
            is_module=chosen.is_module,
            launcher=list(chosen.launcher),
            is_named=self.choice.levers is not None,
            steps=self.choice.steps,
        )

    def _run(
        self,
        job: Job,
        *,
        compiles: bool = False,
        program: Program | None = None,
        share: float = RUNNING,
    ) -> Outcome:
        """Do a job, which is cut off once this share of the budget is spent."""
        until_s = self._until(share)
        longest_s = max(LEAST_S, TIMES_LONGEST * self._run_s) + 2 * job.seconds
        if compiles:
            longest_s += COMPILING_S
        if not self._run_s or longest_s > until_s:
            longest_s = until_s
        outcome = self.keeper.run(self._job(job, program), longest_s)
        outcome.is_cut = outcome.is_cut and (longest_s == until_s or self.keeper.is_stopped)
        ending = outcome.written.ending
        if ending:
            self._refused |= dict.fromkeys(ending.refused)
            self._device = ending.device or self._device
        return outcome

    def _divided(self) -> tuple[list[Arm], dict[str, str]]:
        """Return the arms that were tried, those that save most first, and why others were not."""
        tried, skipped = [], {}
        for arm in self._arms.values():
            facts = self._facts.get(arm.name)
            if arm.lost or arm.gain is not None:
                tried.append(arm)
            elif arm.lever is None or is_worth_a_run(facts):
                skipped[arm.name] = ENDED_FIRST
            elif facts is None:
                continue
            elif facts.trouble:
                skipped[arm.name] = facts.trouble
            elif facts.saw and facts.most_share is not None:
                skipped[arm.name] = f"can save {facts.most_share:.1%} at most"
            elif arm.predicted_ns is not None:
                skipped[arm.name] = NOT_AT_RUN_TIME
        tried.sort(key=lambda arm: -arm.gain.saved_ns if arm.gain else math.inf)
        return tried, skipped


CHANGED_NOTHING = "it changed nothing"
ENDED_FIRST = "no time was left for it"
NOT_AT_RUN_TIME = "suggested, but the program has no call of PyTorch's to change: only you can"


def _between_bases(visits: Sequence[Visit]) -> list[str]:
    """Return the arms after which the program ran as it is."""
    bases = [place for place, visit in enumerate(visits) if not visit.arm]
    last = max(bases, default=0)
    return [visit.arm for visit in visits[:last] if visit.arm]


def _visit(arm: str, ending: Ending) -> Visit:
    return Visit(arm, step_of(ending.step_ns), spread_of(ending.step_ns))


def _patience(arm: Arm) -> tuple[bool, float]:
    """Return the place of an arm in a screen: what is predicted to save most first, else what compiles last."""
    predicted_ns = arm.predicted_ns[1] if arm.predicted_ns else 0.0
    compiles = arm.lever is not None and arm.lever.kind == "compile"
    return compiles and not predicted_ns, -predicted_ns


def _is_winner(arm: Arm) -> bool:
    gains = [gain for gain in (arm.then, arm.alone) if gain is not None]
    return not arm.lost and any(gain.is_sure for gain in gains)


def _is_decided(arm: Arm) -> bool:
    return arm.alone is not None and not arm.alone.is_undecided


def _why_not(outcome: Outcome) -> str:
    """Return the reason that the program cannot be tried, with its last lines."""
    ending = outcome.written.ending
    error = outcome.error
    if not error and ending is not None and not ending.steps:
        error = "it called no model and updated no optimizer in this process"
    error = error or "it ran fewer than two steps"
    refused = ending.refused if ending else []
    return "\n".join([CANNOT_BE_TRIED.format(error), *refused, *outcome.tail])


def arms_of(choice: Choice) -> list[Arm]:
    """Return an arm for each lever that was chosen, or for all but those that must be named; and of --against."""
    names = choice.levers
    if names is None:
        names = tuple(lever.name for lever in LEVERS if not lever.only_by_name)
    arms = [Arm(name, BY_NAME[name]) for name in names]
    if choice.against:
        arms.append(Arm(AGAINST))
    return arms
