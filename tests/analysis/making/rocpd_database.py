"""Databases as rocprofv3 -f rocpd writes them, by the columns of rocprofiler-sdk's rocpd_tables.sql (schema 3).

What rocprofv3 puts into them is by its lib/output/generateRocpd.cpp: each thing has an event; rocprofiler's own
correlation id is the event's `stack_id` and the region's `id`; a roctx range is a region named by roctx's
function, with its text in the event's `extdata`; kernels' symbols are named with and without `.kd`.
"""

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from itertools import count

from tests.analysis.making.building import PUSH_POP, START_END, Rows

GUID = "0000b1c7-c35b-735b-96a7-f0a02ff013cc"
# `!` is for columns never NULL, and text columns are named below.
TABLES = {
    "metadata": "tag! value!",
    "string": "guid! string!",
    "info_node": "guid! hash! machine_id! system_name hostname release version hardware_name domain_name",
    "info_process": "guid! nid! ppid pid! init fini start end command environment! extdata!",
    "info_thread": "guid! nid! ppid pid! tid! name start end extdata!",
    "info_agent": """guid! nid! pid! type absolute_index logical_index type_index uuid name model_name vendor_name
        product_name user_name extdata!""",
    "info_queue": "guid! nid! pid! name extdata!",
    "info_stream": "guid! nid! pid! name extdata!",
    "info_code_object": "guid! nid! pid! agent_id uri load_base load_size load_delta storage_type extdata!",
    "info_kernel_symbol": """guid! nid! pid! code_object_id! kernel_name display_name kernel_object
        kernarg_segment_size kernarg_segment_alignment group_segment_size private_segment_size sgpr_count
        arch_vgpr_count accum_vgpr_count extdata!""",
    "track": "guid! nid! pid tid name_id extdata!",
    "event": "guid! category_id stack_id parent_stack_id correlation_id call_stack! line_info! extdata!",
    "arg": "guid! event_id! position! type! name! value extdata!",
    "region": "guid! nid! pid! tid! start! end! name_id! event_id extdata!",
    "sample": "guid! track_id! timestamp! event_id extdata!",
    "kernel_dispatch": """guid! nid! pid! tid agent_id! kernel_id! dispatch_id! queue_id! stream_id! start! end!
        private_segment_size group_segment_size workgroup_size_x! workgroup_size_y! workgroup_size_z! grid_size_x!
        grid_size_y! grid_size_z! region_name_id event_id extdata!""",
    "memory_copy": """guid! nid! pid! tid start! end! name_id! dst_agent_id dst_address src_agent_id src_address
        size! queue_id stream_id region_name_id event_id extdata!""",
    "memory_allocate": """guid! nid! pid! tid agent_id type level start! end! address size! queue_id stream_id
        event_id extdata!""",
}
TEXTS = """tag value guid string machine_id system_name hostname release version hardware_name domain_name command
    environment name type model_name vendor_name product_name user_name extdata uri storage_type kernel_name
    display_name call_stack line_info level"""
NODE, HOST, GPU = 77, 0, 4  # the agents of a node: first its CPUs, then its GPUs
# CUPTI's number of a copy's direction: its name here, and its agents.
COPIES = {
    1: ("MEMORY_COPY_HOST_TO_DEVICE", HOST, GPU),
    2: ("MEMORY_COPY_DEVICE_TO_HOST", GPU, HOST),
    8: ("MEMORY_COPY_DEVICE_TO_DEVICE", GPU, GPU),
    9: ("MEMORY_COPY_HOST_TO_HOST", HOST, HOST),
    10: ("MEMORY_COPY_DEVICE_TO_DEVICE", GPU, GPU + 1),
}
RANGES = ("MARKER_CORE_RANGE_API", "roctxThreadRangeA", "roctxProcessRangeA")


def create(database, guid=GUID):
    """Create the tables, with the id of the process in their names, and the views of their names without it.

    Without an id, which rocpd_tables.sql allows, there are no views.
    """
    suffix = f"_{guid.replace('-', '_')}" if guid else ""
    for table, columns in TABLES.items():
        parts = ['"id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT']
        for column in columns.split():
            name = column.rstrip("!")
            type_ = "TEXT" if name in TEXTS.split() else "INTEGER"
            default = {"guid": f"DEFAULT '{guid}'", "extdata": "DEFAULT '{}'"}.get(name, "")
            parts.append(f'"{name}" {type_} {default} {"NOT NULL" if column.endswith("!") else ""}')
        database.execute(f"CREATE TABLE IF NOT EXISTS `rocpd_{table}{suffix}` ({', '.join(parts)})")
        if guid:
            database.execute(f"CREATE VIEW IF NOT EXISTS `rocpd_{table}` AS SELECT * FROM `rocpd_{table}{suffix}`")
    return Inserter(database, suffix)


class Inserter:
    """Inserts rows by their columns; strings and events are numbered."""

    def __init__(self, database, suffix):
        self.database, self.suffix = database, suffix
        self.strings, self.event_ids = {}, count(1)

    def row(self, table, **columns):
        names, marks = ", ".join(f'"{name}"' for name in columns), ", ".join("?" * len(columns))
        self.database.execute(
            f"INSERT INTO `rocpd_{table}{self.suffix}` ({names}) VALUES ({marks})", tuple(columns.values())
        )

    def string(self, text):
        if text not in self.strings:
            self.strings[text] = len(self.strings) + 1
            self.row("string", id=self.strings[text], string=text)
        return self.strings[text]

    def event(self, category, correlation, message=None):
        number = next(self.event_ids)
        said = json.dumps({} if message is None else {"message": message})
        others = {
            "parent_stack_id": 0,
            "correlation_id": 0,
            "call_stack": "{}",
            "line_info": "{}",
            "extdata": said,
        }
        self.row("event", id=number, category_id=self.string(category), stack_id=correlation, **others)
        return number

    def region(self, category, name, correlation, place, times, message=None):
        event = self.event(category, correlation, message)
        self.row("region", id=correlation, name_id=self.string(name), event_id=event, **place, **times)


def sayable(rows):
    """Return what rocprofv3 can say of rows: without domains, categories, marks, nodes, and the length of nothing.

    Its ids of calls are a process's own, and each a single call's.
    """
    numbers, ids = count(1), {}
    for call in sorted(rows.launches, key=lambda call: call.start):
        ids.setdefault((call.thread >> 24, call.correlation), next(numbers))
    return Rows(
        [
            replace(r, end=max(r.end, r.start + 1), domain=0, category=0)
            for r in rows.ranges
            if r.event in (PUSH_POP, START_END) and r.end is not None
        ],
        [
            replace(c, end=max(c.end, c.start + 1), correlation=ids[c.thread >> 24, c.correlation], event_class=0)
            for c in {(c.thread >> 24, c.correlation): c for c in rows.launches}.values()
        ],
        [
            replace(
                w, correlation=ids.get((w.process >> 24, w.correlation), 10**6 + n), node=None,
                name=1 if w.kind == "memcpy" else "k", kind="memcpy" if w.kind == "memcpy" else "kernel",
            )
            for n, w in enumerate(sorted(rows.work, key=lambda work: work.process))
        ],
        rows.thread_names,
    )  # fmt: skip


def of_process(rows, process):
    """Return the rows of one process, a number that nsys gives it."""
    return Rows(
        [r for r in rows.ranges if r.thread >> 24 == process],
        [c for c in rows.launches if c.thread >> 24 == process],
        [w for w in rows.work if w.process >> 24 == process],
        {t: name for t, name in rows.thread_names.items() if t >> 24 == process},
    )


def write_all(path, rows):
    """Write the rows of several processes, each into tables of its own."""
    path.unlink(missing_ok=True)
    things = (*(row.thread for row in (*rows.ranges, *rows.launches)), *(work.process for work in rows.work))
    for number, process in enumerate(sorted({thing >> 24 for thing in things})):
        write(path, of_process(rows, process), guid=f"{number}{GUID[1:]}")
    return path


def write(path, rows, *, hip=True, guid=GUID, schema="3"):
    """Write `building.Rows` of one process as rocprofv3 would; without `hip`, as it does without --hip-trace."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA synchronous = OFF")
        insert = create(database, guid)
        for tag, value in (("schema_version", schema), ("uuid", insert.suffix), ("guid", guid)):
            insert.row("metadata", tag=tag, value=value)
        threads = {row.thread for row in (*rows.ranges, *rows.launches)} | set(map(_main, rows.work))
        pid = next(iter(threads), 0) >> 24 & 0xFFFFFF
        _describe(insert, pid, threads, rows)
        numbers = count(1 + max([call.correlation for call in rows.launches], default=0))
        opened = [(next(numbers), range_) for range_ in rows.ranges]
        for number, range_ in opened:
            kind, *names = RANGES
            name = names[range_.event == START_END]
            insert.region(kind, name, number, _place(range_.thread), _times(range_), range_.name)
        for call in rows.launches if hip else ():
            place, times = _place(call.thread), _times(call)
            insert.region("HIP_RUNTIME_API_EXT", "hipLaunchKernel", call.correlation, place, times)
        for number, work in enumerate(rows.work, 1):
            _work(insert, number, work, rows, None if hip else opened)
        database.commit()
    return path


def _place(thread):
    return {"nid": NODE, "pid": thread >> 24 & 0xFFFFFF, "tid": thread & 0xFFFFFF}


def _main(work):
    return work.process | work.process >> 24 & 0xFFFFFF


def _times(row):
    return {"start": row.start, "end": row.end}


def _describe(insert, pid, threads, rows):
    of_process = {"nid": NODE, "pid": pid}
    insert.row("info_process", id=pid, **of_process, command="python train.py", environment="{}")
    for thread in threads:
        name = rows.thread_names.get(thread)
        insert.row("info_thread", id=thread & 0xFFFFFF, **of_process, tid=thread & 0xFFFFFF, name=name)
    names = rows.gpus or ["AMD Instinct MI300X"]
    for agent in range(GPU):
        index = {"absolute_index": agent, "type_index": agent}
        insert.row("info_agent", id=agent, **of_process, type="CPU", **index, product_name="AMD EPYC")
    for number in range(8):
        index = {"absolute_index": GPU + number, "type_index": number}
        name = {"name": "gfx942", "product_name": names[min(number, len(names) - 1)]}
        insert.row("info_agent", id=GPU + number, **of_process, type="GPU", **index, **name)
    for table, name in (("info_stream", "Default Stream"), ("info_queue", "Default Queue")):
        insert.row(table, id=0, **of_process, name=name)
    insert.row("info_code_object", id=1, **of_process, agent_id=GPU)
    for number, name in enumerate(dict.fromkeys(w.name for w in rows.work if w.kind == "kernel"), 1):
        said = json.dumps({"demangled_kernel_name": f"{name} [clone .kd]", "truncated_kernel_name": name[:3]})
        symbol = {"kernel_name": f"_Z{name}.kd", "display_name": name[:3], "extdata": said}
        insert.row("info_kernel_symbol", id=number, **of_process, code_object_id=1, **symbol)
        insert.strings[f"kernel {name}"] = number


def _work(insert, number, work, rows, opened):
    """Insert a dispatch or a copy; its correlation id is the call's, or the innermost `opened` range's."""
    call = next((call for call in rows.launches if call.correlation == work.correlation), None)
    correlation = work.correlation or 0
    if opened is not None and call is not None:
        around = [
            (range_.start, number)
            for number, range_ in opened
            if range_.thread == call.thread
            and range_.start <= call.start < range_.end
            and range_.event != START_END
        ]
        correlation = max(around)[1] if around else 10**6 + number
    place = {**_place(call.thread if call else _main(work)), **_times(work), "stream_id": work.stream}
    if work.kind == "memcpy":
        name, source, target = COPIES[work.name]
        event = insert.event("MEMORY_COPY", correlation)
        source, target = (agent + work.device * (agent >= GPU) for agent in (source, target))
        agents = {"src_agent_id": source, "dst_agent_id": target}
        insert.row("memory_copy", **place, name_id=insert.string(name), **agents, size=64, event_id=event)
        return
    event = insert.event("KERNEL_DISPATCH", correlation)
    sizes = dict.fromkeys((f"workgroup_size_{axis}" for axis in "xyz"), 64)
    sizes |= {"grid_size_x": 1000, "grid_size_y": 64, "grid_size_z": 128}
    symbol = insert.strings[f"kernel {work.name}"]
    of_dispatch = {"dispatch_id": number, "queue_id": 0, "kernel_id": symbol, "agent_id": GPU + work.device}
    insert.row("kernel_dispatch", id=number, **place, **of_dispatch, **sizes, event_id=event)
