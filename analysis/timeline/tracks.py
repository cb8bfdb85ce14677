"""The tracks of a timeline, as Chrome's trace format has them: numbered threads of numbered processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..support.text import fit
from .slices import Drawn, Slices

# Perfetto knows a thread by its number alone, so ours start where a system's own thread numbers end.
FIRST_FREE = 2**24
LONGEST = 80

Place = tuple[int, int]  # process and thread number of a track


class Tracks:
    """Gives every group of slices and each of its lanes a track, in the order in which they are shown."""

    def __init__(self, drawn: Drawn) -> None:
        self._drawn, self._trace = drawn, drawn.attribution.trace
        self._free = FIRST_FREE
        self._taken: set[int] = set()
        self._metadata: list[dict[str, Any]] = []
        self.ranges: dict[Place, Place] = {}
        self.start_end: dict[Place, Place] = {}
        self.calls: dict[Place, Place] = {}
        self.work: dict[Place, Place] = {}
        self.projected: dict[Place, Place] = {}
        self._add_threads()
        self._add_streams()

    def metadata(self) -> Iterator[str]:
        """Return the events that name processes and tracks and put them in order."""
        return (json.dumps(event, ensure_ascii=False, separators=(",", ":")) for event in self._metadata)

    def _add_threads(self) -> None:
        drawn, processes = self._drawn, self._trace.processes
        named: set[int] = set()
        for number, thread in enumerate(self._trace.threads):
            pid = processes[thread.process].process_id
            with_slices = [s for s in (drawn.ranges, drawn.start_end, drawn.calls) if np.any(s.group == number)]
            if with_slices and pid not in named:
                self._name("process", pid, pid, processes[thread.process].name or "CPU")
                named.add(pid)
            label = f"{thread.name or 'thread'} {thread.thread_id}"
            thread_id = thread.thread_id
            self._lanes(self.ranges, drawn.ranges, number, pid, f"{label}: ranges", thread_id)
            self._lanes(self.start_end, drawn.start_end, number, pid, f"{label}: start/end ranges")
            self._lanes(self.calls, drawn.calls, number, pid, f"{label}: launches")

    def _add_streams(self) -> None:
        pids: dict[tuple[int, int], int] = {}
        gpus = self._trace.provenance.gpus
        several = len(self._trace.processes) > 1
        for number, (process, device, stream) in enumerate(self._drawn.streams):
            if (process, device) not in pids:
                pid = pids[process, device] = self._number()
                name = f"GPU {device}" + (f" {gpus[device]}" if 0 <= device < len(gpus) else "")
                of_process = f" of process {self._trace.processes[process].process_id}" if several else ""
                self._name("process", pid, pid, name + of_process)
            pid = pids[process, device]
            self._lanes(self.projected, self._drawn.projected, number, pid, f"stream {stream}: ranges")
            self._lanes(self.work, self._drawn.work, number, pid, f"stream {stream}: work")

    def _lanes(
        self,
        tracks: dict[Place, Place],
        slices: Slices,
        group: int,
        pid: int,
        label: str,
        thread: int | None = None,
    ) -> None:
        """Give each lane of a group a track; the first may have the system's own number."""
        for lane in np.unique(slices.lane[slices.group == group]).tolist():
            tid = thread if thread is not None and not lane and thread not in self._taken else self._number()
            self._taken.add(tid)
            tracks[group, lane] = pid, tid
            self._name("thread", pid, tid, label + (f", crossing {lane}" if lane else ""))

    def _number(self) -> int:
        self._free += 1
        return self._free

    def _name(self, kind: str, pid: int, tid: int, name: str) -> None:
        place = {"ph": "M", "pid": pid, "tid": tid}
        self._metadata.append({**place, "name": f"{kind}_name", "args": {"name": fit(name, LONGEST)}})
        order = {"sort_index": len(self._metadata)}
        self._metadata.append({**place, "name": f"{kind}_sort_index", "args": order})
