"""What kineto knows of GPU work beyond its times: grids, blocks, bytes, contexts.

Some releases of PyTorch give it with each event. Others, such as 2.11, write it only to the trace
they save, which is read here line by line, so that its size does not matter.
"""

import json
import re
import tempfile
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch._C._autograd import DeviceType

Details = dict[str, Any]

GPU_CATEGORY = re.compile(r'"cat": "(?:kernel|gpu_memcpy|gpu_memset)"')


def details_of(results: Any, events: list[Any]) -> Callable[[str, Any], Details]:
    """Return a function from a kind of work (kineto's activity) and an event to the event's details.

    Call it once for each event, in order of start. Details that PyTorch does not provide are left out.
    """
    on_gpu = [event for event in events if event.device_type() == DeviceType.CUDA]
    if not on_gpu or _own_details("", on_gpu[0]):
        return _own_details
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        results.save(str(trace))
        with trace.open(encoding="utf-8", errors="replace") as lines:
            remaining = saved_details(lines)

    def next_details(kind: str, event: Any) -> Details:
        details = remaining[kind, event.correlation_id()]
        return details.popleft() if details else {}

    return next_details


def saved_details(lines: Iterable[str]) -> defaultdict[tuple[str, int], deque[Details]]:
    """Return the details of all GPU work in a saved trace by kind and correlation id, in order of start.

    Kineto names the category on an event's first line, and ends it with `},`. A correlation id has several pieces
    of work when it launched a CUDA graph.
    """
    events, text = [], ""
    for line in lines:
        if GPU_CATEGORY.search(line):
            text = line
        elif text:
            text += line
        if text and line.strip() in ("},", "}"):
            with suppress(ValueError):  # where an event in it ends, but not the whole one
                events.append(json.loads("{" + text.strip().rstrip(",").removeprefix("{")))
                text = ""
    details_of_work: defaultdict[tuple[str, int], deque[Details]] = defaultdict(deque)
    for event in sorted(events, key=lambda event: float(event["ts"])):
        details = event.get("args", {})
        details_of_work[event["cat"], details.get("correlation", 0)].append(details)
    return details_of_work


def _own_details(_kind: str, event: Any) -> Details:
    try:
        return dict(json.loads("{" + getattr(event, "metadata_json", str)() + "}"))
    except ValueError:
        return {}
