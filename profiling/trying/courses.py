"""What a run does with its steps: count some, or switch levers on and off between blocks of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Protocol

from nvtx_kernels.analysis.support.noise import LEAST_FREEDOM

from ..recorder.beside import between_ns, moment, wait_for_gpu
from .results import Block

#: Of a program with fewer steps than warm-up and this, a third is warm-up.
FEWEST_COUNTED = 5
#: Steps of a block that are left out, at least and at most; how nearly the last two of them agree.
LEAST_SETTLING, MOST_SETTLING, AGREEMENT = 2, 12, 0.1
#: Steps of a block: as many as take this time, within bounds; and so few where a step takes longer than that.
BLOCK_S, LEAST_STEPS, MOST_STEPS = 0.06, 6, 30
SLOW_STEP_S, SLOW_STEPS = 0.3, 3


class Course(Protocol):
    """What is done at the end of each step."""

    def step_ended(self, number: int) -> bool:
        """Handle the end of a step, from 1 on; 0 forgets those before. Return whether the run is over."""


class Count:
    """Counts steps after warm-up.

                 warmed up            as many as wanted
        WARM_UP ───────────► COUNTED ───────────────────► over

    `extra` is how many more steps warm up, which the program decides.
    """

    def __init__(
        self,
        warm_up: int,
        steps: int,
        extra: Callable[[], int],
        warmed: Callable[[], None],
    ) -> None:
        self._warm_up = warm_up
        self._steps = steps
        self._extra = extra
        self._warmed = warmed
        self._moments: list[Any] = []
        self._ends_s: list[float] = []

    @property
    def _first(self) -> int:
        return self._warm_up + self._extra()

    def step_ended(self, number: int) -> bool:
        """Count a step."""
        if number == 0:
            self._moments, self._ends_s = [], []
            return False
        last = self._first + self._steps
        if number == self._first:
            self._warmed()
        if number in (self._first, last):
            wait_for_gpu()
        self._moments.append(moment())
        self._ends_s.append(time.perf_counter())
        return number >= last

    def step_ns(self) -> list[float]:
        """Return the times of the steps after warm-up, ns."""
        wait_for_gpu()
        first = self._first
        if len(self._moments) < first + FEWEST_COUNTED:
            first = max(1, len(self._moments) // 3)
        return [between_ns(*pair) for pair in pairwise(self._moments[first - 1 :])]

    def warm_up_s(self, began_s: float) -> float:
        """Return how long warm-up took on the host, from its begin on, s."""
        return self._ends_s[min(self._first, len(self._ends_s)) - 1] - began_s if self._ends_s else 0.0


class Screen:
    """Switches the arms of a plan on and off between blocks of steps; between two arms the program is as it is.

                            ┌──── the next arm, or none ────┐
             warmed up      ▼         two agree             │ as many as wanted
    WARM_UP ───────────► SETTLING ───────────────► COUNTING ┴───────────────────► over, after the last
    """

    def __init__(
        self,
        warm_up: int,
        until_s: float,
        plan: Callable[[], Sequence[str]],
        switch: Callable[[str, bool], None],
        write: Callable[[Block], None],
    ) -> None:
        self._warm_up, self._until_s = warm_up, until_s
        self._make_plan = plan
        self._switch = switch
        self._write = write
        self._plan: list[str] = []
        self._state: Callable[[float], bool] = self._warming
        self._number = 0
        self._began_s = 0.0
        self._last_s = 0.0
        self._arm, self._steps = "", LEAST_STEPS
        self._settling_s: list[float] = []
        self._moments: list[Any] = []

    def step_ended(self, number: int) -> bool:
        """Go on to the next state if this one is over."""
        if number == 0:
            return False
        self._number = number
        if self._state != self._counting:
            wait_for_gpu()
        now_s = time.perf_counter()
        took_s, self._last_s = now_s - self._last_s, now_s
        return self._state(took_s)

    def _warming(self, took_s: float) -> bool:
        if self._number < self._warm_up:
            return False
        self._steps = steps_of_block(took_s)
        arms = self._make_plan()
        self._plan = [name for arm in arms for name in (arm, "")]
        self._begin("")
        return not arms

    def _settling(self, took_s: float) -> bool:
        self._settling_s.append(took_s)
        left_out = len(self._settling_s)
        if left_out < LEAST_SETTLING:
            return False
        shorter_s, longer_s = sorted(self._settling_s[-2:])
        if longer_s - shorter_s < AGREEMENT * longer_s or left_out >= MOST_SETTLING:
            self._state, self._moments = self._counting, [moment()]
        return False

    def _counting(self, _: float) -> bool:
        self._moments.append(moment())
        if len(self._moments) <= self._steps:
            return False
        wait_for_gpu()
        step_ns = [between_ns(*pair) for pair in pairwise(self._moments)]
        self._write(Block(self._arm, step_ns, self._settling_s))
        is_late = not self._arm and time.monotonic() > self._until_s
        if not self._plan or is_late:
            return True
        self._begin(self._plan.pop(0))
        return False

    def _begin(self, arm: str) -> None:
        if self._arm:
            self._switch(self._arm, False)
        self._arm = arm
        if arm:
            self._switch(arm, True)
        self._state, self._settling_s = self._settling, []
        wait_for_gpu()
        self._last_s = time.perf_counter()

    def stop(self) -> None:
        """Switch off what is on."""
        if self._arm:
            self._switch(self._arm, False)


def plan_of(arms: Sequence[str], rounds: int) -> list[str]:
    """Return the order of arms in several rounds, each beginning with another one."""
    plan: list[str] = []
    for number in range(rounds):
        first = number * len(arms) // rounds
        plan += [*arms[first:], *arms[:first]]
    return plan


def rounds_of(arms: int, rounds: int) -> int:
    """Return how many rounds are made: more of few arms, whose noise is known from their repetitions alone."""
    return max(rounds, 1 + math.ceil(LEAST_FREEDOM / arms)) if arms else 0


def steps_of_block(step_s: float) -> int:
    """Return of how many steps a block is."""
    if step_s > SLOW_STEP_S:
        return SLOW_STEPS
    return round(min(max(BLOCK_S / step_s, LEAST_STEPS), MOST_STEPS))
