"""Names of ranges and functions in which a program gets its next batch of data, or waits."""

from __future__ import annotations

import re
from typing import NamedTuple

#: PyTorch's name of the range around each batch of a loader.
ITERATOR = re.compile(r"enumerate\(\w+\)#.*__next__")


class NameTest(NamedTuple):
    """A pattern, with names that it matches and similar ones that it does not."""

    pattern: re.Pattern[str]
    examples: tuple[str, ...]
    near_misses: tuple[str, ...]


#: PyTorch's own range is `enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__`.
LOADS_DATA = NameTest(
    re.compile(
        r"DataLoader|\bdata.?load(?:s|er|ers|ing)?\b|(?:load|next|get|fetch).?batch|_next_data", re.IGNORECASE
    ),
    (
        "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
        "torch/utils/data/dataloader.py(733): __next__",
        "data loading",
        "data_loading",
        "dataload",
        "load_batch",
        "get batch",
        "next_batch",
    ),
    ("data parallel", "reload", "batch norm", "load_state_dict", "batch 3", "targets batch"),
)
#: PyTorch's iterators of loaders with workers, also if the middle or the end of the name is cut, or replaced.
IN_WORKERS = NameTest(
    re.compile(r"\(DataLoader\)#_M|\b_M[\w….]*DataLoaderIter|_try_get_data\b"),
    (
        "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
        "enumerate(DataLoader)#_M…DataLoaderIter.__next__",
        "enumerate(DataLoader)#_MultiName1DataLoaderIter.__next__",
        "enumerate(DataLoader)#_MultiProc",
        "torch/utils/data/dataloader.py(1298): _try_get_data",
    ),
    (
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        "torch/utils/data/dataloader.py(733): __next__",
    ),
)
#: And of those without.
IN_PROGRAM = NameTest(
    re.compile(r"\(DataLoader\)#_S|\b_S[\w….]*DataLoaderIter"),
    (
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        "enumerate(DataLoader)#_S…DataLoaderIter.__next__",
        "enumerate(DataLoader)#_Single",
    ),
    ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "enumerate(DataLoader)#MyIter.__next__"),
)
WAITS = NameTest(
    re.compile(r"\bwait\b|_wait\b|\bwait_|barrier|synchroni[sz]e|\bsleep\b", re.IGNORECASE),
    ("c10d::barrier", "wait_tensor", "torch.cuda.synchronize", "time.sleep"),
    ("await_count", "sleepy", "waiter"),
)


def loads_data(name: str) -> bool:
    """Return whether a range or a function of this name gets the next batch."""
    return LOADS_DATA.pattern.search(name) is not None


def iterates(name: str) -> bool:
    """Return whether this is PyTorch's own range around each batch of a loader."""
    return ITERATOR.fullmatch(name) is not None


def loads_in_workers(name: str) -> bool | None:
    """Return whether a range or function of this name gets batches that workers make; None if it does not say."""
    if IN_WORKERS.pattern.search(name):
        return True
    return False if IN_PROGRAM.pattern.search(name) else None


def waits(name: str) -> bool:
    """Return whether a range or a function of this name waits."""
    return WAITS.pattern.search(name) is not None
