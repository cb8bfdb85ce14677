"""Every reader, given each shape of much: an answer, or a refusal in one sentence, in ten seconds and 512 MiB."""

import gzip
import shutil
from random import Random

import pytest

from tests.analysis.making import forked, rocpd_database
from tests.analysis.making.kineto import (
    AUTOGRAD,
    MAIN,
    Block,
    Call,
    Program,
    Work,
    rows_of,
    write_kineto,
    write_nsys,
)
from tests.analysis.making.parquet_folders import as_parquet

SECONDS, MEMORY_BYTES = 10, 512 << 20
RANDOM = Random(51)
CALLS = [Call(n, 10 * n, 10 * n + 5) for n in range(1, 4)]
WORK = [Work(n, 10 * n + 6, 10 * n + 9) for n in range(1, 4)]


def program(blocks=(), calls=CALLS, work=WORK):
    return Program(blocks=list(blocks), calls=list(calls), work=list(work))


def crossing(count):
    starts = sorted(RANDOM.randrange(10**8) for _ in range(count))
    return [Block(f"r{n}", start, start + RANDOM.randrange(1, 10**8)) for n, start in enumerate(starts)]


SHAPES = {
    "nothing": lambda: program((), (), ()),
    "deep": lambda: program(Block(f"r{n}", n, 10**6 - n) for n in range(20_000)),
    "deep, of one name": lambda: program(Block("r", n, 10**6 - n) for n in range(20_000)),
    "crossing": lambda: program(crossing(939)),
    "crossing in both threads": lambda: program(
        Block(block.name, block.start, block.end, thread) for thread in (MAIN, AUTOGRAD) for block in crossing(500)
    ),
    "many names of ranges": lambda: program(Block(f"r{n}", 2 * n, 2 * n + 1) for n in range(105_000)),
    "many names of kernels": lambda: program(
        work=[Work(1, 20 * n, 20 * n + 9, f"k{n}<float>(int)") for n in range(1, 50_000)]
    ),
    "a long name": lambda: program([Block("x" * 3_000_000, 1, 90)], work=[Work(1, 16, 19, "k" * 3_000_000)]),
    "at one moment": lambda: program(Block(f"r{n % 9}", 10, 10) for n in range(30_000)),
    "one correlation": lambda: program(
        calls=[Call(1, 10 * n, 10 * n + 5) for n in range(1, 20_000)],
        work=[Work(1, 10 * n + 6, 10 * n + 9) for n in range(1, 20_000)],
    ),
    "many threads": lambda: program(Block("r", 10, 20, 1_000 + n) for n in range(5_000)),
    "many streams and GPUs": lambda: program(
        work=[Work(1, 10 * n, 10 * n + 5, device=n % 40, stream=n) for n in range(1, 5_000)]
    ),
    "control characters": lambda: program([Block("\x1b[31m\u202e\r\x07<b>=1+1", 1, 90)]),
    "centuries": lambda: program([Block("r", 1, 2**62)]),
}


def gzipped(folder, written):
    path = write_kineto(folder / "a.pt.trace.json", written)
    packed = folder / "b.pt.trace.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes(), 1))
    return packed


READERS = {
    "nsys SQLite": lambda folder, written: write_nsys(folder / "a.sqlite", written),
    "nsys Parquet": lambda folder, written: as_parquet(
        write_nsys(folder / "a.sqlite", written), folder / "b_pqtdir"
    ),
    "PyTorch trace": lambda folder, written: write_kineto(folder / "a.pt.trace.json", written),
    "PyTorch trace, gzipped": gzipped,
    "rocprofv3": lambda folder, written: rocpd_database.write(
        folder / "a_results.db", rocpd_database.sayable(rows_of(written))
    ),
}


def status_in_bounds(path):
    """Return the status of a command that answers or says one sentence, and stays within the bounds."""
    done = forked.run("-m", "nvtx_kernels", "rank", path, "--top", "3")
    assert (done.returncode, done.stderr.count("\n")) in ((0, 0), (1, 1)), done.stderr[-500:]
    assert not {"\x1b", "\u202e", "\x07", "\r"} & {*done.stdout, *done.stderr}
    assert done.cpu_s < SECONDS
    assert done.peak_bytes < MEMORY_BYTES
    return done.returncode


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reader", [name for name in READERS if "gzipped" not in name])
def test_much_of_a_shape_is_answered_or_refused(tmp_path, reader, shape):
    assert status_in_bounds(READERS[reader](tmp_path, SHAPES[shape]())) in (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0, 100, 0.99])
@pytest.mark.parametrize("reader", READERS)
def test_a_file_that_breaks_off_is_answered_or_refused(tmp_path, reader, kept):
    path = READERS[reader](tmp_path, SHAPES["deep, of one name"]())
    for file in path.iterdir() if path.is_dir() else [path]:
        content = file.read_bytes()
        file.write_bytes(content[: int(kept * len(content)) if isinstance(kept, float) else kept])
    assert status_in_bounds(path) == 1


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_a_link_to_nothing_or_to_itself_is_refused(tmp_path, reader):
    path = READERS[reader](tmp_path, SHAPES["nothing"]())
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    path.symlink_to(path.name)
    assert status_in_bounds(path) == 1
    path.unlink()
    path.symlink_to("nowhere")
    assert status_in_bounds(path) == 1
