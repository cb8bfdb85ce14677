"""A job's ranks: how long a step takes, which rank the others wait for, and why; whatever their clocks say."""

import json
from functools import partial

import pytest
from nvtx_kernels.analysis import kernels, view
from nvtx_kernels.analysis.opened import opened
from nvtx_kernels.analysis.page.contents import contents

from nvtx_kernels import __main__ as command
from tests.analysis.making import checks
from tests.analysis.making.bundled import SHARED, needs_shared
from tests.analysis.making.jobs import recorded_job
from tests.analysis.making.kineto import Block, Call, Program, write_kineto
from tests.analysis.making.kineto import Work as Ran
from tests.analysis.measures.test_job_rules import pausing

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
STEP, STEPS, HOUR = 10_000_000, 8, 3_600_000_000_000


def rank(folder, number, arrives, computes=1_000_000, clock=0, ranks=2):
    """Write a rank whose steps compute, then reduce from `arrives` to the end of the step but 1 ms."""
    group = (
        ("Collective name", "allreduce"), ("Group size", ranks), ("Process Group Name", "0"),
        ("Process Group Ranks", str([*range(ranks)])),
    )  # fmt: skip
    blocks, calls, work = [], [], []
    for step in range(STEPS):
        at = clock + step * STEP
        blocks.append(Block("step", at, at + STEP - 1000))
        for begin, end, name, told in ((0, computes, "gemm", ()), (arrives, STEP - 1_000_000, ALL_REDUCE, group)):
            call = 2 * step + (name == ALL_REDUCE)
            calls.append(Call(call, at + begin + 1000, at + begin + 2000))
            work.append(Ran(call, at + begin + 10_000, at + end, name, said=told))
    path = folder / f"rank{number}.pt.trace.json"
    return write_kineto(path, Program(blocks, calls, work), distributedInfo={"rank": number, "world_size": ranks})


def said(*paths):
    status, out, err = checks.said(kernels, *paths)
    assert (status, err) == (0, "")
    return " ".join(out.split())


def account_of(*paths):
    return json.loads(checks.said(kernels, *paths, "--format", "json")[1])["account"]


@pytest.mark.parametrize("count", [2, 8, 12])
def test_the_ranks_wait_for_the_one_that_comes_last_though_clocks_are_an_hour_apart(tmp_path, count):
    late = count - 1
    paths = [
        rank(tmp_path, number, 8_000_000 if number == late else 2_000_000, clock=number * HOUR, ranks=count)
        for number in range(count)
    ]
    account = account_of(*paths)
    assert (account["late"]["rank"], account["late"]["waiting_ns"]) == (f"rank {late}", 6_000_000)
    assert (account["late"]["kind"], account["steps_counted"]) == ("idle", STEPS)
    waits = {gpu["rank"]: gpu["waiting_ns"] for gpu in account["gpus"]}
    assert waits == {f"rank {number}": 0 if number == late else 6_000_000 for number in range(count)}
    others = "rank 0 waits" if count == 2 else f"the other {late} ranks wait"
    assert (
        f"A step takes 9.88 ms while recorded: {others} 6.00 ms (61%) for rank {late}, whose GPU is idle"
        in said(*paths)
    )


@pytest.mark.parametrize("number", [0, 1])
def test_the_parts_of_a_rank_add_up_to_its_step(tmp_path, number):
    gpu = account_of(rank(tmp_path, 0, 2_000_000), rank(tmp_path, 1, 8_000_000))["gpus"][number]
    assert sum(part["ns"] for part in gpu["parts"]) == pytest.approx(gpu["step_ns"], abs=0.5)


def test_a_rank_that_computes_longer_is_late_by_that(tmp_path):
    paths = rank(tmp_path, 0, 1_500_000), rank(tmp_path, 1, 8_000_000, computes=7_900_000)
    assert "rank 0 waits 6.50 ms (66%) for rank 1, which computes 6.90 ms longer (" in said(*paths)


def test_ranks_that_arrive_together_wait_for_none(tmp_path):
    shown = said(rank(tmp_path, 0, 2_000_000), rank(tmp_path, 1, 2_100_000))
    assert "another, 100 µs at most. Transfer that nothing hides takes 6.89 ms (70%)." in shown


def test_little_transfer_is_not_told(tmp_path):
    shown = said(rank(tmp_path, 0, 8_800_000), rank(tmp_path, 1, 8_850_000))
    assert "no rank waits long for another, 50.0 µs at most." in shown
    assert "Transfer that nothing hides" not in shown


def test_the_page_of_ranks_says_who_waits_as_the_terminal_does(tmp_path):
    paths = [rank(tmp_path, number, arrives) for number, arrives in enumerate((4_000_000, 1_000_000))]
    (ranks,) = contents([opened(path) for path in paths]).differences
    assert (ranks["title"], ranks["answer"] in said(*paths)) == ("Ranks", True)
    assert ranks["tables"][0]["title"].startswith("A step of each rank")


def test_a_rank_whose_collectives_are_fewer_is_not_told_apart(tmp_path):
    paths = rank(tmp_path, 0, 2_000_000, ranks=3), rank(tmp_path, 1, 8_000_000, ranks=3)
    assert account_of(*paths)["late"] is None
    assert "Waiting and transfer cannot be separated" in said(*paths)


def test_unnamed_collectives_of_four_ranks_are_one_if_they_end_together(tmp_path):
    paths = recorded_job(tmp_path, partial(pausing, late=(3,)), 4)
    waits = [gpu["waiting_ns"] for gpu in account_of(*paths)["gpus"]]
    assert (waits[3], min(waits[:3]) > 4_000_000) == (0, True)


def test_unnamed_collectives_of_two_jobs_are_not_told_to_wait_for_each_other(tmp_path):
    for name, program in (("a", partial(pausing, in_turn=True)), ("b", pausing)):
        (tmp_path / name).mkdir()
        recorded_job(tmp_path / name, program, 2)
    paths = sorted(tmp_path.glob("*/rank*.sqlite"))
    assert [gpu["waiting_ns"] for gpu in account_of(*paths)["gpus"]] == [None] * 4


def test_notes_are_said_once_and_ranks_have_numbers_in_every_answer(tmp_path):
    folder = tmp_path / "a_long_name_of_a_run"
    folder.mkdir()
    paths = [rank(folder, number, 2_000_000) for number in range(2)]
    for module, words in ((kernels, ("--kernels",)), (view, ("communication",))):
        shown = checks.said(module, *words, *paths)[1].partition("\nMore: ")[0]
        notes = [line for line in shown.splitlines() if line.startswith("Note: ")]
        assert (len(notes), ".json" in shown, "rank 1" in shown) == (len(set(notes)), False, True)


@needs_shared
@pytest.mark.parametrize("width", [60, 80, 140])
def test_the_first_screen_of_ranks_has_30_lines_and_its_answer_two(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    folder = SHARED / "failing" / "traces" / "torchtitan_names"
    shown = checks.said(command, "rank", folder)[1].splitlines()
    assert len(shown) <= 30
    answer, _, nothing = " ".join(shown[2 : shown.index("", 2)]).partition(" Nothing to fix first: ")
    assert len(answer) <= 2 * 80
    assert nothing == "no known change saves 2% or more of a step of 18.5 ms."


@needs_shared
def test_a_folder_of_a_trainers_names_is_one_job():
    folder = SHARED / "failing" / "traces" / "torchtitan_names"
    assert "rank 1 waits 5.58 ms (30%) for rank 0, whose GPU is idle " in said(folder)
