"""The Python stacks in which CUDA graphs' kernels were captured, as PyTorch saves them beside a trace.

`torch.cuda.graph_annotations.dump_kernel_py_stacks(path)` (PyTorch after 2.15, `record_py_stacks`) writes gzipped
JSON: by a node's id the frames of its launch, `file:line:function` a line, innermost first. `--capture FILE` makes
a range of each frame, as of the frames of a trace with stacks: `train.py(30): forward`.
"""

from __future__ import annotations

import re
import zlib
from pathlib import Path as FilePath

import msgspec
import numpy as np

from ..errors import NotAReport, UsageError
from ..trace import Path, Trace
from .chrome_events import opened
from .graph_annotations import LARGEST_BYTES, MOST_DEPTH, is_node, with_captures_at

THREAD_NAME = "capture of CUDA graphs, by its Python stacks"
#: How such a file begins, unpacked: with a node's id and its frames.
_BEGINS = re.compile(rb'\s*\{\s*"\d+"\s*:\s*"')
_HEAD_BYTES = 4096
_FRAME = re.compile(r"(?P<file>.+):(?P<line>\d+):(?P<function>[^:]*)")
_STACKS = msgspec.json.Decoder(dict[str, str])


def has_stacks(file: FilePath) -> bool:
    """Return whether a file is one of stacks, by how it begins."""
    try:
        with opened(file) as content:
            return _BEGINS.match(content.read(_HEAD_BYTES)) is not None
    except (OSError, EOFError, zlib.error):
        return False


def with_stacks(trace: Trace, file: FilePath) -> Trace:
    """Return a trace of replays with the functions in which their kernels were captured.

    Raises UsageError where no kernel of the trace is of a node with a stack, and NotAReport for a file that
    PyTorch did not write.
    """
    path_of = _paths_in(file)
    paths = [*dict.fromkeys(path_of.values())]
    number = {path: position for position, path in enumerate(paths)}
    node = np.empty(0, np.int64) if trace.graph_node is None else trace.graph_node
    path = np.array(
        [number[path_of[node_id]] if node_id in path_of else -1 for node_id in node.tolist()], np.int64
    )
    rows = np.flatnonzero(path >= 0)
    if not len(rows):
        raise UsageError(
            f"No kernel of the trace is of a graph's node with a stack in {file}: it is of another run, or was "
            "saved after the graphs were destroyed."
        )
    return with_captures_at(trace, rows, path[rows], paths, THREAD_NAME)


def _paths_in(file: FilePath) -> dict[int, Path]:
    """Return the ranges of each node by its id, outermost first."""
    try:
        with opened(file) as content:
            text = content.read(LARGEST_BYTES + 1)
        if len(text) > LARGEST_BYTES:
            raise ValueError(f"it is larger than {LARGEST_BYTES >> 20} MiB")
        stacks = _STACKS.decode(text)
    except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
        raise NotAReport(f"{file} is not a file of graphs' stacks: {error}. Write it again.") from error
    paths = {int(node): _path(stack) for node, stack in stacks.items() if is_node(node)}
    return {node: path for node, path in paths.items() if path}


def _path(stack: str) -> Path:
    """Return the ranges of a stack's frames, outermost first."""
    frames = filter(None, map(_FRAME.fullmatch, reversed(stack.splitlines()[:MOST_DEPTH])))
    return tuple(f"{frame['file']}({frame['line']}): {frame['function']}" for frame in frames)
