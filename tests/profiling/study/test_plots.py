import pytest
from nvtx_kernels.profiling.benchmark import main
from nvtx_kernels.profiling.study.frame import frame
from nvtx_kernels.profiling.study.plots import PlotError, draw, drawing, horizontal

from tests.profiling.making.measured_rows import attention_row, failed, file_of, row

PNG = b"\x89PNG"
DTYPES = ("fp32", "bf16")
MODES = ("forward", "train")
SWEEPS = {
    "context_length": [row(context_length=context, dtype=dtype) for context in (128, 512) for dtype in DTYPES],
    "warmup": [row(warmup=warmup) for warmup in ((), (40, 20))],
    "size": [row(size=size, dtype=dtype) for size in ("small", "xl") for dtype in DTYPES],
    "dtype": [row(dtype=dtype) for dtype in DTYPES],
    "length": [attention_row(held_bytes=1 << 30)],
}


@pytest.fixture
def matplotlib():
    return pytest.importorskip("matplotlib", reason="the extra [plot] is not installed")


@pytest.mark.parametrize("axis", SWEEPS)
def test_what_was_swept_stands_on_the_horizontal_axis(axis):
    assert horizontal(frame(SWEEPS[axis])) == axis


@pytest.mark.slow
@pytest.mark.parametrize("sweep", SWEEPS)
def test_plot_is_a_picture(sweep, matplotlib, tmp_path):
    draw(frame(SWEEPS[sweep]), tmp_path / "times.png")
    assert (tmp_path / "times.png").read_bytes()[:4] == PNG
    assert len(list(tmp_path.iterdir())) == 1


def test_series_keep_their_colour_from_panel_to_panel(matplotlib):
    figure = drawing(frame([row(mode="forward", dtype="bf16"), row(mode="train", dtype="fp32")]))
    colours = {}
    for panel in figure.axes:
        for bar in panel.containers:
            colours.setdefault(bar.get_label(), set()).add(bar[0].get_color())
    assert sorted(map(len, colours.values())) == [1, 1]
    assert len(set.union(*colours.values())) == 2


def test_sizes_differ_in_colour_and_the_rest_in_line(matplotlib):
    rows = [row(size=size, mode=mode, warmup=w) for size in ("small", "xl") for mode in MODES for w in ((), (9,))]
    panel = drawing(frame(rows)).axes[0]
    looks = {bar.get_label(): (bar[0].get_color(), bar[0].get_linestyle()) for bar in panel.containers}
    assert looks["xl forward"][0] == looks["xl train"][0] != looks["small train"][0]
    assert looks["small train"][1] == looks["xl train"][1] != looks["xl forward"][1]


@pytest.mark.parametrize(("longest", "scale"), [(30, "linear"), (900, "log")])
def test_times_far_apart_are_drawn_by_power(longest, scale, matplotlib):
    figure = drawing(frame([row(measured=(20, 20)), row(size="xl", measured=(longest, longest))]))
    assert figure.axes[0].get_yscale() == scale
    low, high = figure.axes[0].get_ylim()
    assert low < 20 < longest < high


def test_values_that_do_not_grow_are_not_joined(matplotlib):
    panel = drawing(frame(SWEEPS["dtype"])).axes[0]
    assert [bar[0].get_linestyle() for bar in panel.containers] == ["None"]
    assert [tick.get_text() for tick in panel.get_xticklabels()] == ["fp32", "bf16"]


def test_title_says_what_all_lines_share(matplotlib):
    title = drawing(frame([row(size=size, compile=True) for size in ("small", "xl")])).get_suptitle()
    for words in ("NVIDIA H200", "n = 2 steps", "context 512", "batch 4", "dtype fp32", "compile yes"):
        assert words in title
    assert "size" not in title


def test_unknown_kind_of_picture_is_refused(matplotlib, tmp_path, capsys):
    options = ["--results", str(file_of(tmp_path, row())), "--plot", str(tmp_path / "times.doc")]
    assert main(options) == 1
    assert "times.doc cannot be drawn: Format 'doc' is not supported" in capsys.readouterr().err


def test_nothing_to_draw_is_said(matplotlib, tmp_path):
    with pytest.raises(PlotError, match="no measurement"):
        draw(frame([failed()]), tmp_path / "times.png")
