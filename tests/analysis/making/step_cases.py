"""The table of what a step is, as data: for synthetic recordings, and for programs that do the same on a CPU.

A case is the events, which optimizers are given, `warmup`, and what each measured step holds: its events' kinds.
"""

from typing import NamedTuple

from tests.analysis.making.training_facts import B, E, F, N, P, R, S, U, W, X


class Case(NamedTuple):
    """One row of the table."""

    name: str
    events: list
    given: tuple
    warmup: int
    steps: list


def five(iteration, after_third=()):
    """Return five iterations, with something after the third."""
    return [event for n in range(5) for event in (*iteration, *(after_third if n == 2 else ()))]


A = ("a",)
LOOP = [F(), B(), U()]
CASES = [
    Case("a loop", five(LOOP), A, 1, ["FBU"] * 4),
    Case("no warm-up", five(LOOP), A, 0, ["FBU"] * 5),
    Case("accumulation", five([F(), B(), F(), B(), U()]), A, 1, ["FBFBU"] * 4),
    Case("a teacher", five([E("t"), F(), B(), U()]), A, 1, ["EFBU"] * 4),
    Case("pseudo-labels", five([E(), F(), B(), U()]), A, 1, ["EFBU"] * 4),
    Case("an implicit layer and pseudo-labels", five([F("fn"), E(), B(), U()]), A, 1, ["FEBU"] * 4),
    Case("no model is called", five([B(), U()]), A, 1, ["BU"] * 4),
    Case("updates in backward", five([F(), B("x", "y", "z")]), (), 1, ["FB"] * 4),
    Case("updates in backward, and calls", five([F(), B("x", "y", "z"), P]), (), 1, ["FB"] * 4),
    Case("experts", [F(), B("a", "b")] * 3 + [F(), B("a", "c")] + [F(), B("a", "b")] * 3, (), 1, ["FB"] * 6),
    Case("two updates a call", five([F(), B(), U(), F(), B(), U(), P]), A, 1, ["FBUFBU"] * 4),
    Case("three updates a call", five(LOOP * 3 + [P]), A, 2, ["FBUFBUFBU"] * 3),
    Case("a call at the top", five([P, F(), B(), U()]), A, 1, ["FBU"] * 3),
    Case("evaluation in between", five(LOOP, [E(), E()]), A, 1, ["FBU"] * 4),
    Case("evaluation in between, and calls", five([F(), B(), U(), P], [E(), E()]), (), 1, ["FBU"] * 4),
    Case("a check in one step", LOOP * 2 + [F(), E(), B(), U()] + LOOP * 2, A, 1, ["FBU"] * 4),
    Case("evaluation of two models", five(LOOP, [E(), E("t")] * 2), A, 1, ["FBU"] * 4),
    Case("evaluation of an average", five(LOOP, [E("ema")] * 2), A, 1, ["FBU"] * 4),
    Case("a teacher, and a metric", five([E("t"), F(), B(), U()], [E(), E("lpips")] * 2), A, 1, ["EFBU"] * 4),
    Case("a check before the loop", [E(), E(), *five(LOOP)], A, 0, ["FBU"] * 5),
    Case("a check before the loop, none given", [E(), E(), *five(LOOP)], (), 0, ["FBU"] * 5),
    Case("rollouts", five([N()] * 8 + LOOP * 2), A, 1, ["FBU", *["NNNNNNNNFBU", "FBU"] * 4]),
    Case("two of three", five([F(), B(), U("d")] * 2 + [F(), B(), U("g")]), (), 1, ["FBUFBUFBU"] * 4),
    Case("two, given", five([F(), B(), U("d"), F(), B(), U("g")]), ("d", "g"), 1, ["FBUFBU"] * 4),
    Case("two, none given", five([F(), B(), U("d"), F(), B(), U("g")]), (), 1, ["FBUFBU"] * 4),
    Case("two in the other order", five([F(), B(), U("g"), F(), B(), U("d")]), ("d", "g"), 1, ["FBUFBU"] * 3),
    Case("one never updates", five([F(), B(), U("d")]), ("d", "g"), 1, ["FBU"] * 4),
    Case("one updates once at the end", [*five(LOOP), F(), B(), U("c")], (), 1, ["FBU"] * 4),
    Case("one begins late", LOOP * 3 + [F(), B(), U(), F(), B(), U("d")] * 4, (), 1, ["FBUFBU"] * 3),
    Case("an iteration without an update", LOOP * 2 + [F(), B()] + LOOP * 2, A, 1, ["FBU", "FBFBU", "FBU"]),
    Case(
        "an update that a scaler skips", LOOP * 2 + [F(), B(), X()] + LOOP * 2, A, 1, ["FBU", "FBX", "FBU", "FBU"]
    ),
    Case("a reference for two updates", five([E("t"), *LOOP * 2]), A, 1, ["FBU", *["EFBU", "FBU"] * 4]),
    Case("a reference for four updates", five([E("t"), *LOOP * 4]), A, 1, ["FBU"] * 19),
    Case("a reference for four updates, and calls", five([E("t"), *LOOP * 4, P]), A, 1, ["EFBUFBUFBUFBU"] * 4),
    Case("two calls, rollouts in both", [E(), E("t"), *LOOP, P] * 2, A, 1, ["EEFBU"]),
    Case("one step of two, and evaluation", [*LOOP, E(), *LOOP], A, 1, ["FBU"]),
    Case("warm-up of the program's", [W(*LOOP * 5), *LOOP * 10], A, 1, ["FBU"] * 10),
    Case("warm-up and steps of the program's", [W(*LOOP * 5), *[S(*LOOP)] * 10], A, 1, ["FBU"] * 10),
    Case("the course's script", [W(*LOOP * 2), *[S(*LOOP)] * 3], A, 2, ["FBU"] * 3),
    Case("warm-up of the program's, and calls", [W(*[*LOOP, P] * 2), *[*LOOP, P] * 3], A, 1, ["FBU"] * 3),
    Case("steps of the program's", [S(*LOOP)] * 5, A, 1, ["FBU"] * 4),
    Case("one update of many closures", five([F(), B()] * 3 + [U()]), A, 1, ["FBFBFBU"] * 4),
    Case("a graph's replays, and calls", five([R(), P]), (), 1, ["R"] * 4),
    Case("a graph's replays", five([R()]), (), 1, ["R"] * 4),
    Case("inference, and calls", five([E("t"), P]), (), 1, ["E"] * 4),
    Case("inference, and another model once", five([E("t"), P], [E("d")]), (), 1, ["E", "E", "EE", "E"]),
    Case("inference", five([E("t")]), (), 1, ["EEEEE"]),
    Case("no update", five([F(), B()]), (), 1, ["FBFBFBFBFB"]),
]
