"""Real reports that the tests bundle or find next to the repository, unpacked into a folder of the test's."""

import lzma
import os
from pathlib import Path

import pytest

from tests.conftest import slice_of

DATA = Path(__file__).parents[2] / "data"
SHARED = Path(__file__).parents[4] / "shared"
OURS = ("h200_train_fp32.sqlite", "h200_compiled.sqlite", "h200_recorder.sqlite", "h200_emit_nvtx.sqlite.xz")
OTHERS = (
    "corpus/Athrun0109__CS336_assignment2__result.sqlite",
    "corpus/GindaChen__nsys-ai__mfu_2gpu_after.sqlite",
    "corpus/IhorAtlanov__assignment2-systems__result.sqlite",
    "corpus/YoonKyonghwan__EfficientCenterFormer__poolformer.sqlite",
    "corpus/bolongcheng__assignment2-systems__small_bwd_A100.sqlite",
    "corpus/bolongcheng__assignment2-systems__small_fwd_A100.sqlite",
    "corpus/jsun-012__assignment2-systems__result.sqlite",
    "corpus/zx3xyy__assignment2-systems__result_2_7B.sqlite",
    "h200/cuda_graph_nodes.sqlite",
    "h200/cuda_graph_trace.sqlite",
    "h200/forward_fp32.sqlite",
    "h200/train_fp32.sqlite",
)
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="needs the reports in ../shared")
LARGEST = pytest.param(OURS[-1], marks=pytest.mark.slow)
REPORTS = [*OURS[:-1], LARGEST, *(pytest.param(name, marks=needs_shared) for name in OTHERS)]


FOLDERS = ("h200", "corpus", "gains", "idle", "ranks", "stacks", "failing/traces")
ENDINGS = (".sqlite", ".sqlite.xz", ".json", ".json.xz", ".json.gz")
#: Files that are no reports, and reports without any work.
WITHOUT_WORK = ("truth.json", "IhorAtlanov", "YoonKyonghwan", "amd_graphs_without_kernels")


def every_report():
    """Return the reports of the tests and of ../shared that hold work; without CI, a third of these."""
    params = []
    for folder in (DATA, *(SHARED / name for name in FOLDERS)):
        marks = () if folder == DATA else (needs_shared,)
        files = [path for path in sorted(folder.rglob("*")) if path.name.endswith(ENDINGS)]
        files = [path for path in files if not path.name.startswith(WITHOUT_WORK)]
        is_whole = folder == DATA or os.environ.get("CI")
        files = (files if is_whole else slice_of(files, 3)) or [folder]
        params += [pytest.param(path, marks=marks, id=f"{folder.name}/{path.name[:28]}") for path in files]
    return params


def readable(path, folder):
    """Return a report's path, or that of it unpacked into a folder."""
    if path.suffix != ".xz":
        return path
    (folder / path.stem).write_bytes(lzma.decompress(path.read_bytes()))
    return folder / path.stem


def unpacked(name, folder):
    """Put a report of the tests, or of ../shared, into a folder."""
    packed, path = (DATA if name in OURS else SHARED) / name, folder / "report.sqlite"
    path.write_bytes(lzma.decompress(packed.read_bytes()) if packed.suffix == ".xz" else packed.read_bytes())
    return path
