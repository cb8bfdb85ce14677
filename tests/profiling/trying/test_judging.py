"""What measurements say: gains with their noise, losses, verdicts, and how often nothing seems to be a gain."""

import math

import numpy as np
import pytest
from nvtx_kernels.analysis.support.noise import Interval
from nvtx_kernels.profiling.trying.courses import plan_of, rounds_of
from nvtx_kernels.profiling.trying.document import measured
from nvtx_kernels.profiling.trying.judging import (
    BLOCKS_DIFFER,
    PROCESSES_DIFFER,
    Arm,
    Gain,
    Visit,
    best_of_each_kind,
    changes_of,
    changes_of_nothing,
    compared,
    intervals_of,
    judge,
    spread_of,
    step_of,
)
from nvtx_kernels.profiling.trying.levers import BY_NAME, Numbers
from nvtx_kernels.profiling.trying.results import Ending


def visits_of(plan, times, spread=0.0):
    return [Visit(arm, time, spread) for arm, time in zip(plan, times, strict=True)]


def test_an_arm_is_compared_with_the_line_between_the_bases_around_it():
    drift = [100.0, 110.0, 121.0, 133.1]
    visits = visits_of(["", "a", "b", "", "c"], [drift[0], drift[1] / 2, drift[2], drift[3], 1.0])
    changes = changes_of([visits])
    assert {name: round(math.exp(change), 3) for name, (change,) in changes.items()} == {"a": 0.5, "b": 1.0}


@pytest.mark.parametrize(("steps", "step"), [([10, 11, 12], 11), ([10, 10, 10, 100], 10)])
def test_a_run_is_its_mean_step_unless_steps_differ_much(steps, step):
    assert step_of(steps) == step


def test_the_program_as_it_is_says_how_noisy_a_change_is():
    visits = visits_of(["", "a", "", ""], [100.0, 1.0, 110.0, 1e9])
    assert [round(change, 4) for change in changes_of_nothing([visits])] == [round(math.log(1.1) * 0.75**0.5, 4)]


@pytest.mark.parametrize(("steps", "spread"), [([10, 10, 10, 100], 0), ([9, 10, 11, 12, 8], 0.14826)])
def test_outliers_are_none_of_the_spread_of_steps(steps, spread):
    assert spread_of(steps) == pytest.approx(spread)


@pytest.mark.parametrize(
    ("change", "spread", "times", "is_sure"),
    [
        (0.77, 0.02, 1, True),
        (0.77, 0.15, 1, True),
        (0.46, 0.02, 1, True),
        (0.46, 0.2, 1, False),
        (0.3, 0.02, 1, False),
        (0.3, 0.02, 3, True),
        (0.02, 0.02, 1, False),
        (0.02, 0.02, 4, False),
    ],
)
def test_large_gains_are_sure_after_one_process_and_small_ones_are_not(change, spread, times, is_sure):
    visits = visits_of(["", *["a", ""] * times], [100, *[100 * (1 - change), 101] * times], spread)
    assert Gain(intervals_of([visits], PROCESSES_DIFFER)["a"], 1e8).is_sure == is_sure


NOISES = {
    "normal": lambda rng, size: rng.normal(0, 0.03, size),
    "heavy tails": lambda rng, size: rng.standard_t(3, size) * 0.02,
    "drift": lambda rng, size: np.cumsum(rng.normal(0, 0.01, size)) + rng.normal(0, 0.02, size),
}


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("arms", [1, 3, 10])
def test_of_changes_without_effect_none_wins_in_39_of_40_tries(noise, arms):
    rng, wins, tries = np.random.default_rng(1), 0, 800
    names = [str(number) for number in range(arms)]
    plan = ["", *(name for arm in plan_of(names, rounds_of(arms, 4)) for name in (arm, ""))]
    for _ in range(tries):
        values = np.exp(NOISES[noise](rng, len(plan))) * 1e6
        wins += wins_of(visits_of(plan, values, 0.02), BLOCKS_DIFFER)
    assert wins / tries <= 1 / 40


def wins_of(visits, differ):
    """Whether any arm seems to save time."""
    return any(Gain(interval, 1e6).is_sure for interval in intervals_of([visits], differ).values())


#: Of processes of 16 programs on an H200 and on two shared CPUs: by how much runs of one program differ (standard
#: deviation of logarithms), and how much the steps of one run do.
PROCESSES = [
    (0.001, 0.01), (0.003, 0.03), (0.02, 0.02), (0.03, 0.06), (0.05, 0.06), (0.09, 0.09), (0.14, 0.11),
    (0.25, 0.25), (0.054, 0.06), (0.053, 0.06), (0.10, 0.07), (0.11, 0.08), (0.12, 0.12), (0.16, 0.05),
    (0.20, 0.08), (0.28, 0.04),
]  # fmt: skip


@pytest.mark.parametrize("arms", [1, 3, 18])
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_of_processes_without_effect_none_wins_in_19_of_20_programs(arms, rounds):
    rng, wins = np.random.default_rng(1), 0
    names = [str(number) for number in range(arms)] * rounds
    plan = ["", *(name for place in range(0, len(names), 2) for name in (*names[place : place + 2], ""))]
    programs = PROCESSES * 50
    for deviation, spread in programs:
        values = np.exp(rng.normal(0, deviation, len(plan))) * 1e6
        wins += wins_of(visits_of(plan, values, spread), PROCESSES_DIFFER)
    assert wins / len(programs) <= 1 / 20


def ending(losses, weights=1.0, steps=None):
    return Ending(losses=losses, weights=weights, steps=len(losses) if steps is None else steps)


LOSSES = [4.0, 3.0, 2.5, 2.2, 2.1, 2.0]


def near(share, first=None):
    """The same losses, but for this share; the first one for another."""
    return (
        [loss * (1 + share) for loss in LOSSES] if first is None else [LOSSES[0] * (1 + first), *near(share)[1:]]
    )


@pytest.mark.parametrize(
    ("bases", "losses", "weights", "numbers", "is_fine", "text"),
    [
        ([LOSSES], LOSSES, 1.0, Numbers.SAME, True, "within 1e-7"),
        ([LOSSES, LOSSES], LOSSES, 1.01, Numbers.SAME, False, "differ by 1e-02"),
        ([LOSSES, LOSSES], near(1e-5), 1.0, Numbers.SAME, False, "differ by 1e-05"),
        ([LOSSES], near(1e-5), 1.0, Numbers.SAME, True, "differ by 1e-05, as its runs may"),
        ([LOSSES], near(0.2), 1.0, Numbers.SAME, False, "differ by 2e-01"),
        ([LOSSES], near(1e-5), 1.0, Numbers.ROUNDED, True, "differ by 1e-05"),
        ([LOSSES], near(5e-4, 1e-6), 1.0, Numbers.ROUNDED, True, "differ by 5e-04"),
        ([LOSSES, LOSSES], near(5e-3, 1e-6), 1.0, Numbers.ROUNDED, False, "differ by 5e-03"),
        ([LOSSES], near(1e-2), 1.0, Numbers.LOWER, True, "differ by 1e-02"),
        ([LOSSES, near(1e-2)], near(-1e-2), 1.0, Numbers.SAME, True, "1e-02, as its runs"),
        ([LOSSES], [math.nan] * 6, 1.0, Numbers.LOWER, False, "NaN or infinite"),
        ([[math.nan] * 6], [math.nan] * 6, 1.0, Numbers.SAME, True, "within 1e-7"),
        ([[None] * 6], [None] * 6, 1.0, Numbers.LOWER, True, "not seen"),
    ],
)
def test_losses_and_weights_are_compared_by_what_a_change_does_to_numbers(
    bases, losses, weights, numbers, is_fine, text
):
    found = compared([ending(base) for base in bases], ending(losses, weights), numbers)
    assert (found.is_fine, found.text) == (is_fine, text)


def test_weights_after_other_steps_are_not_compared():
    assert compared([ending(LOSSES)], ending(LOSSES, 9.0, steps=7), Numbers.SAME).is_equal


def gain(change, half=0.02, on=()):
    return Gain(Interval(change, change - half, change + half), 1e8, on)


VERDICTS = [
    ("fused", gain(-0.2), None, [LOSSES], "use"),
    ("anomaly", gain(-0.8), None, [near(2e-2)], "use_check_accuracy"),
    ("tf32", gain(-0.2), None, [near(1e-3)], "use_check_accuracy"),
    ("tf32", gain(-0.2), None, [near(0.5)], "losses_differ"),
    ("workers", gain(-0.2), None, [near(1e-2)], "use"),
    ("fused", gain(-0.2), gain(-0.1, on=("no_gc",)), [LOSSES], "use"),
    ("fused", gain(-0.05, 0.2), gain(-0.1, on=("no_gc",)), [LOSSES], "use_after"),
    ("collect", gain(-0.2), gain(0.01, on=("no_gc",)), [LOSSES], "same_as"),
    ("fused", gain(-0.015, 0.001), None, [LOSSES], "no_change"),
    ("fused", gain(0.01), None, [], "no_change"),
    ("fused", gain(-0.04, 0.05), None, [], "not_known"),
    ("fused", gain(0.3), None, [], "slower"),
    ("fused", None, None, [], "not_known"),
]


@pytest.mark.parametrize(("name", "alone", "then", "losses", "verdict"), VERDICTS)
def test_a_verdict_follows_from_gain_and_losses(name, alone, then, losses, verdict):
    arm = Arm(name, BY_NAME[name], alone=alone, then=then, runs=[ending(one) for one in losses])
    judge(arm, [ending(LOSSES)], then.on if then else ())
    assert arm.verdict == verdict
    assert arm.after == (then.on if verdict in ("same_as", "use_after") else ())
    assert (arm.write is not None) == verdict.startswith("use")


def test_what_failed_fails_whatever_was_measured():
    arm = Arm("fused", BY_NAME["fused"], alone=gain(-0.5), lost="it changed nothing")
    judge(arm, [], ())
    assert arm.verdict == "fails"


def test_a_run_that_saves_nothing_contradicts_its_screen():
    arm = Arm("fused", BY_NAME["fused"], alone=gain(-0.3), runs=[ending(LOSSES)], run_change=0.0)
    judge(arm, [ending(LOSSES)], ())
    assert arm.verdict == "not_known"


def test_of_levers_of_one_kind_the_better_is_used_with_the_others():
    arms = [Arm(name, BY_NAME[name], alone=gain(change)) for name, change in SAVES.items()]
    for arm in arms:
        judge(arm, [], ())
    assert [arm.name for arm in best_of_each_kind(arms)] == ["no_gc", "fused"]


SAVES = {"collect": -0.3, "no_gc": -0.4, "fused": -0.2, "zero_grad": 0.01}


@pytest.mark.parametrize(("cold_s", "saves", "steps"), [(20.0, -0.2, 1000), (0.5, -0.2, None), (20.0, 0.2, None)])
def test_a_cold_start_is_paid_by_what_is_saved(cold_s, saves, steps):
    arm = Arm("compile", BY_NAME["compile"], alone=gain(saves), cold_s=cold_s)
    assert arm.pays_after_steps == steps


def test_a_saving_below_its_noise_is_shown_in_the_noises_unit():
    interval = Interval(0.0015, -0.4, 0.4)
    arm = Arm("workers", alone=Gain(interval, 55e6))
    assert measured(arm) == "−0.1 ± 22 ms, 0%"
