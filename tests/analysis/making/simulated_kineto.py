"""Simulated programs as Kineto writes them, with its events `cuda_sync` in the forms that they have had.

The layout of these events is that of libkineto's CuptiActivity.h, and of HTA's traces of 2023 and 2024.
"""

from tests.analysis.making.building import MAIN
from tests.analysis.making.kineto import event, trace_text

PROCESS = MAIN >> 24 & 0xFFFFFF
COPIES = {1: "Memcpy HtoD (Pinned -> Device)", 2: "Memcpy DtoH (Device -> Pinned)"}
KINDS = {
    "cudaStreamSynchronize": "Stream Sync",
    "cudaStreamWaitEvent": "Stream Wait Event",
    "cudaEventSynchronize": "Event Sync",
    "cudaDeviceSynchronize": "Context Sync",
}
#: What Kineto says of the event that is waited for, besides its number: by whose form it writes.
FORMS = {
    "Kineto": lambda record: {
        "wait_on_stream": record.stream,
        "wait_on_cuda_event_record_corr_id": record.correlation,
    },
    "Kineto of 2023": lambda record: {"wait_on_stream": record.stream},
    "CUDA 12.9": lambda _: {"wait_on_stream": -1, "wait_on_cuda_event_record_corr_id": -1},
    "Cuspy": lambda record: {"wait_on_stream": -1, "wait_on_cuda_event_record_corr_id": record.correlation},
}


def kineto_recorded(path, machine, form="Kineto", *, lists_events=False):
    """Write what Kineto would record of a machine; with `form` None it was not asked for synchronizations."""
    rows, name_of = machine.rows, {}
    events = [event("user_annotation", r.name, PROCESS, PROCESS, r.start, r.end) for r in rows.ranges]
    for call in rows.launches:
        name_of[call.correlation] = name = call.name.rpartition("_v")[0]
        events.append(
            event("cuda_runtime", name, PROCESS, PROCESS, call.start, call.end, correlation=call.correlation)
        )
    for work in rows.work:
        category, name = ("gpu_memcpy", COPIES[work.name]) if work.kind == "memcpy" else ("kernel", work.name)
        place = {"device": 0, "stream": work.stream, "correlation": work.correlation}
        events.append(event(category, name, 0, work.stream, work.start, work.end, **place))
    last_record = {}
    for wait in rows.waits if form else ():
        place = {"stream": wait.stream, "correlation": wait.correlation, "device": 0, "context": 1}
        if wait.records:
            last_record[wait.event] = wait
            if lists_events:
                events.append(event("cuda_event", "cudaEvent", 0, wait.stream, 0, 1, event_id=wait.event, **place))
            continue
        kind = KINDS[name_of[wait.correlation]]
        of_event = {}
        if wait.event:
            of_event = {"wait_on_cuda_event_id": wait.event, **FORMS[form](last_record[wait.event])}
        events.append(event("cuda_sync", kind, 0, wait.stream, 0, 1, cuda_sync_kind=kind, **of_event, **place))
    path.write_text(trace_text(events))
    return path
