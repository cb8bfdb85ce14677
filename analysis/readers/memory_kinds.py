"""Kinds of memory that copies are from and to, as nsys numbers them and as PyTorch's profiler writes them."""

from __future__ import annotations

import re
from functools import lru_cache

#: By what Kineto calls them (`memoryKindString` in libkineto's cupti_strings.cpp), the numbers of nsys's
#: ENUM_CUDA_MEM_KIND. Others, such as AMD's `Host`, are unknown.
MEMORY_KINDS = {
    "Pageable": 0,
    "Pinned": 1,
    "Device": 2,
    "Array": 3,
    "Managed": 4,
    "Device Static": 5,
    "Managed Static": 6,
}
#: Memory of the CPU that is not pinned.
PAGEABLE = MEMORY_KINDS["Pageable"]
UNKNOWN_MEMORY = -1
_BETWEEN = re.compile(r"\(([\w ]+) -> ([\w ]+)\)")


@lru_cache(maxsize=256)
def memory_of(copy: str) -> tuple[int, int]:
    """Return the kinds of memory that a copy of Kineto's is from and to, UNKNOWN_MEMORY for others.

    >>> memory_of("Memcpy HtoD (Pageable -> Device)")
    (0, 2)
    """
    between = _BETWEEN.search(copy)
    if between is None:
        return UNKNOWN_MEMORY, UNKNOWN_MEMORY
    source, target = between.groups()
    return MEMORY_KINDS.get(source, UNKNOWN_MEMORY), MEMORY_KINDS.get(target, UNKNOWN_MEMORY)
