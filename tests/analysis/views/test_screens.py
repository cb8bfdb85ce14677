"""Whole screens against files that were looked at; `pytest --golden` writes them anew, to be read in review."""

from functools import partial
from pathlib import Path

import pytest
from nvtx_kernels.analysis import kernels, view

from tests.analysis.making.building import MAIN, Launch, Range, Rows, Work, process_of, thread, write
from tests.analysis.making.plain_sql import OURS

GOLDEN = Path(__file__).parent / "golden"
US = 1_000
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
GEMM = "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4"


def trained(loads, main=MAIN, device=0, late=0, **facts):
    """Return the rows of a rank that loads for so many µs before each step, and exchanges gradients `late`."""
    rows, at = Rows(metadata=facts), 0
    for load in loads:
        rows.ranges.append(Range("enumerate(DataLoader)#__next__", at * US, (at + load) * US, main))
        start = at + load
        done = start + 50
        for phase, lasts, name in (("forward", 300, GEMM), ("backward", 600, GEMM), ("exchange", 200, ALL_REDUCE)):
            called = start + 10 * len(rows.launches) % 30
            if phase != "exchange":
                rows.ranges.append(Range(phase, called * US, (called + 8) * US, main))
            begin = done + late * (phase == "exchange")
            rows.launches.append(Launch(len(rows.launches), (called + 1) * US, (called + 6) * US, main))
            work = {"process": process_of(main), "device": device}
            rows.work.append(Work(len(rows.work), begin * US, (begin + lasts) * US, name, **work))
            done = begin + lasts
        rows.ranges.append(Range("step", start * US, (done + 10) * US, main))
        at = done + 20
    return rows


def ranks(*rows):
    """Return the rows of several ranks in one report."""
    names = ("ranges", "launches", "work")
    return Rows(*([row for of_rank in rows for row in getattr(of_rank, name)] for name in names))


MADE = {
    "slow_step": partial(trained, [100, 100, 5000, *[100] * 3]),
    "every_fourth": partial(trained, [*[100] * 3, 4000] * 3),
    "varying": partial(trained, [100, 2000, 400, 3000, 900]),
    "cpu_recording": partial(trained, [100] * 4, NVTX_KERNELS_WORK="CPU"),
    "two_ranks": lambda: ranks(trained([100] * 4), trained([100] * 4, thread(200), 1, late=400)),
}
SCREENS = [
    ("rank", "h200_train_fp32", 80),
    ("rank", "h200_train_fp32", 120),
    *(("rank", name, 80) for name in MADE),
    ("idle", "slow_step", 80),
    ("idle", "two_ranks", 80),
    ("idle", "cpu_recording", 80),
    ("steps", "slow_step", 80),
    ("communication", "two_ranks", 80),
]


@pytest.mark.parametrize(("name", "of", "width"), SCREENS)
def test_a_screen_is_the_one_that_was_looked_at(name, of, width, tmp_path, monkeypatch, capsys, request):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(width))
    if of in MADE:
        write(tmp_path / f"{of}.sqlite", MADE[of]())
    else:
        (tmp_path / f"{of}.sqlite").symlink_to(OURS)
    words = [f"{of}.sqlite"] if name == "rank" else [name, f"{of}.sqlite"]
    assert (kernels if name == "rank" else view).main(words) == 0
    shown, golden = capsys.readouterr().out, GOLDEN / f"{name}_{of}_{width}.txt"
    if request.config.getoption("--golden"):
        golden.write_text(shown, encoding="utf-8")
    assert shown == golden.read_text(encoding="utf-8")
