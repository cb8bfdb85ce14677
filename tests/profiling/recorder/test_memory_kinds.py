"""Whose memory copies are from and to: as Kineto names it, in PyTorch's traces and in our own reports."""

import pytest
from nvtx_kernels.analysis.readers.memory_kinds import memory_of
from nvtx_kernels.profiling.recorder.joining import Joining
from nvtx_kernels.profiling.recorder.range_log import RangeLog

from nvtx_kernels import analysis, sessions
from tests.analysis.making.kineto import BASE_NS, Call, Program, Work, write_kineto
from tests.profiling.making.recordings import writing

#: A copy as Kineto names it, nsys's numbers of its kinds of memory, and whether these are pageable.
COPIES = [
    ("Memcpy HtoD (Pageable -> Device)", (0, 2), (True, False)),
    ("Memcpy HtoD (Pinned -> Device)", (1, 2), (False, False)),
    ("Memcpy DtoH (Device -> Pageable)", (2, 0), (False, True)),
    ("Memcpy DtoD (Device -> Device)", (2, 2), (False, False)),
    ("Memcpy DtoD (Managed Static -> Device Static)", (6, 5), (False, False)),
    ("Memcpy HtoD (Host -> Device)", (None, 2), (False, False)),
    ("Memcpy PtoP", (None, None), (False, False)),
]
PROGRAM = Program(
    calls=[Call(n, 100 * n, 100 * n + 10) for n in range(len(COPIES) + 1)],
    work=[
        Work(0, 20, 30),
        *(
            Work(n, 100 * n + 20, 100 * n + 60, name, "gpu_memcpy", said=(("bytes", 4096 * n),))
            for n, (name, *_) in enumerate(COPIES, 1)
        ),
    ],
)


def recorded(tmp_path):
    """Write a session that Kineto saved as our recorder does."""
    with writing(tmp_path / "r.sqlite", on_gpu=True) as file:
        seen = sessions.read(write_kineto(tmp_path / "s.json", PROGRAM), on_gpu=True)
        Joining(file, BASE_NS).add(seen, RangeLog())
    return tmp_path / "r.sqlite"


@pytest.mark.parametrize(("name", "kinds", "_"), COPIES)
def test_kinds_of_memory_are_read_from_a_copys_name(name, kinds, _):
    assert memory_of(name) == tuple(-1 if kind is None else kind for kind in kinds)


@pytest.mark.parametrize("is_recording", [True, False])
def test_copies_from_and_to_pageable_memory_are_known(tmp_path, is_recording):
    path = recorded(tmp_path) if is_recording else write_kineto(tmp_path / "t.pt.trace.json", PROGRAM)
    copies = analysis.read(path).copies
    assert copies.work.tolist() == [*range(1, len(COPIES) + 1)]
    assert copies.bytes.tolist() == [4096 * n for n in range(1, len(COPIES) + 1)]
    assert [*zip(copies.from_pageable, copies.to_pageable, strict=True)] == [pageable for *_, pageable in COPIES]


def test_copies_of_unknown_sizes_are_unknown(tmp_path):
    bare = Program(calls=[Call(1, 0, 5)], work=[Work(1, 20, 60, COPIES[0][0], "gpu_memcpy")])
    assert analysis.read(write_kineto(tmp_path / "t.pt.trace.json", bare)).copies is None
