"""What measurements say: gains with their noise, losses, verdicts, and how often nothing seems to be a gain."""

import math

import numpy as np
import pytest
from nvtx_kernels.analysis.support.noise import Interval, pooled_intervals
from nvtx_kernels.profiling.trying.courses import plan_of, rounds_of
from nvtx_kernels.profiling.trying.document import measured
from nvtx_kernels.profiling.trying.judging import (
    Arm,
    Gain,
    best_of_each_kind,
    changes_as_it_is,
    changes_of,
    compared,
    judge,
    step_of,
)
from nvtx_kernels.profiling.trying.levers import BY_NAME, Numbers
from nvtx_kernels.profiling.trying.results import Ending


def test_an_arm_is_compared_with_the_line_between_the_bases_around_it():
    drift = [100.0, 110.0, 121.0, 133.1]
    visits = [("", drift[0]), ("a", drift[1] / 2), ("b", drift[2]), ("", drift[3]), ("c", 1.0)]
    changes = changes_of([visits])
    assert {name: round(math.exp(change), 3) for name, (change,) in changes.items()} == {"a": 0.5, "b": 1.0}


@pytest.mark.parametrize(("steps", "step"), [([10, 11, 12], 11), ([10, 10, 10, 100], 10)])
def test_a_run_is_its_mean_step_unless_steps_differ_much(steps, step):
    assert step_of(steps) == step


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
        intervals = pooled_intervals(changes_of([list(zip(plan, values, strict=True))]))
        wins += any(Gain(interval, 1e6).is_sure for interval in intervals.values())
    assert wins / tries <= 1 / 40


@pytest.mark.parametrize("noise", NOISES)
def test_what_ran_three_times_together_wins_by_chance_in_one_of_40_tries_at_most(noise):
    rng, wins, tries = np.random.default_rng(1), 0, 800
    plan = ["", "a", "", "b", "", "together", "", "together", "", "together", ""]
    for _ in range(tries):
        visits = [*zip(plan, np.exp(NOISES[noise](rng, len(plan))) * 1e6, strict=True)]
        changes = {**changes_of([visits]), "": changes_as_it_is([visits])}
        assert len(changes[""]) == 2
        wins += Gain(pooled_intervals(changes)["together"], 1e6).is_sure
    assert wins / tries <= 1 / 40


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
        ([LOSSES], LOSSES, 1.01, Numbers.SAME, False, "differ by 1e-02"),
        ([LOSSES], near(1e-5), 1.0, Numbers.SAME, False, "differ by 1e-05"),
        ([LOSSES], near(1e-5), 1.0, Numbers.ROUNDED, True, "differ by 1e-05"),
        ([LOSSES], near(5e-4, 1e-6), 1.0, Numbers.ROUNDED, True, "differ by 5e-04"),
        ([LOSSES], near(5e-3, 1e-6), 1.0, Numbers.ROUNDED, False, "differ by 5e-03"),
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
