"""The steps of a run: warm-up and counting, and a screen's order of states."""

import pytest
from nvtx_kernels.profiling.trying import courses
from nvtx_kernels.profiling.trying.courses import Count, Screen, plan_of, rounds_of, steps_of_block


def driven(screen, steps=10_000):
    """Call a screen at the end of steps until it is over, and return after how many."""
    return next((number for number in range(1, steps) if screen.step_ended(number)), None)


def screen_of(plan, heard, until_s=float("inf"), warm_up=3):
    def switch(arm, on):
        heard.append(f"{arm} {'on' if on else 'off'}")

    return Screen(warm_up, until_s, lambda: plan, switch, lambda block: heard.append(block))


def test_arms_take_turns_with_the_program_as_it_is(monkeypatch):
    monkeypatch.setattr(courses, "AGREEMENT", 10)
    heard = []
    ended = driven(screen_of(["a", "b", "a"], heard))
    words = [one if isinstance(one, str) else f"[{one.arm}]" for one in heard]
    assert " ".join(words) == "[] a on [a] a off [] b on [b] b off [] a on [a] a off []"
    blocks = [one for one in heard if not isinstance(one, str)]
    assert {(len(block.step_ns), len(block.settling_s)) for block in blocks} == {(courses.MOST_STEPS, 2)}
    assert ended == 3 + 7 * (2 + courses.MOST_STEPS)


def test_a_block_settles_until_two_steps_agree_or_for_twelve(monkeypatch):
    times_s = iter([1.0, 9.0, 1.0, 1.05, *[1.0] * 30])
    now = [0.0]

    def clock():
        now[0] += next(times_s, 1.0)
        return now[0]

    heard = []
    screen = screen_of([], heard)
    screen._state, screen._steps, screen._last_s = screen._settling, 2, 0.0
    monkeypatch.setattr(courses.time, "perf_counter", clock)
    for number in range(1, 7):
        screen.step_ended(number)
    assert [len(block.settling_s) for block in heard] == [4]


def test_nothing_to_change_ends_the_screen_after_warm_up():
    assert driven(screen_of([], [])) == 3


def test_a_screen_ends_at_its_time_but_not_within_an_arm(monkeypatch):
    heard = []
    driven(screen_of(["a", "b"], heard, until_s=0.0))
    assert [one for one in heard if isinstance(one, str)] == []
    assert len(heard) == 1


@pytest.mark.parametrize(("step_s", "steps"), [(1e-5, 30), (0.004, 15), (0.02, 6), (0.2, 6), (0.5, 3)])
def test_blocks_of_short_steps_have_more_of_them(step_s, steps):
    assert steps_of_block(step_s) == steps


@pytest.mark.parametrize(
    ("arms", "asked", "rounds"), [(0, 4, 0), (1, 4, 9), (2, 4, 5), (3, 4, 4), (10, 4, 4), (10, 6, 6)]
)
def test_few_arms_have_more_rounds(arms, asked, rounds):
    assert rounds_of(arms, asked) == rounds


def test_each_round_begins_with_another_arm():
    assert plan_of(["a", "b", "c", "d"], 4) == [*"abcd", *"bcda", *"cdab", *"dabc"]


def test_a_count_is_over_after_the_steps_wanted_and_those_that_workers_prefetch():
    warmed = []
    count = Count(3, 5, lambda: 2, lambda: warmed.append(True))
    ended = next(number for number in range(1, 100) if count.step_ended(number))
    assert (ended, len(count.step_ns()), warmed) == (10, 5, [True])


@pytest.mark.parametrize(("steps", "counted"), [(1, 0), (2, 1), (8, 6), (9, 6), (11, 5)])
def test_of_a_short_program_a_third_is_warm_up(steps, counted):
    count = Count(6, 20, lambda: 0, lambda: None)
    for number in range(1, steps + 1):
        count.step_ended(number)
    assert len(count.step_ns()) == counted


def test_calls_before_training_are_forgotten():
    count = Count(1, 2, lambda: 0, lambda: None)
    ends = [count.step_ended(number) for number in (1, 2, 0, 1, 2, 3)]
    assert ends == [False, False, False, False, False, True]
