"""Communication by module and copies: what compute hides, and ranks wait for the last of a collective."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvtx_kernels.analysis import view
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.errors import ReportError
from nvtx_kernels.analysis.kernel_names.categories import categorize
from nvtx_kernels.analysis.measures.communication import communicated
from nvtx_kernels.analysis.measures.exchanges import OTHER, bus_factor, exchanges, module_of, named
from nvtx_kernels.analysis.summary.parallel import Ranked
from nvtx_kernels.analysis.views import communication

from tests.analysis.making.building import Launch, Range, Rows, Work, build, launched, process_of, thread
from tests.analysis.making.communicating import communicating
from tests.analysis.making.kineto import Block, Call, Program, write_kineto
from tests.analysis.making.kineto import Work as Ran
from tests.analysis.making.plain_sql import OURS, value
from tests.analysis.making.subjects import DATA, by, screen, subject, table, viewed
from tests.analysis.making.traces import trace_of

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def ranks_of(folder, *ranks, ranges=()):
    """Build a report of a process and GPU per rank, of (range, name, start, end) each; ranges are 10 long."""
    rows = {"ranges": [], "launches": [], "work": []}
    for rank, done in enumerate(ranks):
        main = thread(100 + rank)
        rows["ranges"] += [Range(name, start, end, main) for name, start, end in ranges]
        for at, (module, name, start, end) in enumerate(done):
            number = len(rows["launches"])
            rows["ranges"].append(Range(module, at * 20, at * 20 + 10, main))
            rows["launches"].append(Launch(number, at * 20 + 1, at * 20 + 2, main))
            rows["work"].append(Work(number, start, end, name, process=process_of(main), device=rank, stream=at))
    return build(folder, **rows)


KERNELS = st.lists(
    st.tuples(st.sampled_from([ALL_REDUCE, ALL_GATHER, "sgemm"]), st.integers(0, 90), st.integers(0, 30)),
    min_size=1, max_size=12,
)  # fmt: skip


def moments(kernels):
    """Return the moments at which some (start, length) run."""
    return {moment for start, length in kernels for moment in range(start, start + length)}


@given(KERNELS)
def test_rows_sum_to_the_moments_at_which_kernels_communicate_and_others_compute(done):
    work = [Work(n, 200 + at, 200 + at + lasts, name, stream=n) for n, (name, at, lasts) in enumerate(done)]
    launches = [Launch(n, 2 * n, 2 * n + 1) for n in range(len(done))]
    rows = Rows(ranges=[Range("layer 0", 0, 9)], launches=launches, work=work)
    sums = [row.sums for row in communicated(exchanges(attribute(trace_of(rows)))).rows]
    computes, communicates = (
        moments(when for name, *when in done if (name == "sgemm") is computes) for computes in (True, False)
    )
    assert sum(row.time_ns for row in sums) == len(communicates)
    assert sum(row.hidden_ns for row in sums) == len(communicates & computes)


def test_copies_that_overlap_their_own_kind_count_once_and_compute_hides_them(tmp_path):
    done = [(10, 30, 1, "memcpy"), (20, 40, 1, "memcpy"), (35, 90, "sgemm", "kernel"), (80, 95, 2, "memcpy")]
    launches = [Launch(n, 5, 9) for n in range(len(done))]
    work = [Work(n, start, end, name, kind, stream=n) for n, (start, end, name, kind) in enumerate(done)]
    path = build(tmp_path, ranges=[Range("forward", 0, 1000)], launches=launches, work=work)
    rows = table(viewed("communication", path), "copies")
    assert [(row["count"], row["union_ns"], row["hidden_ns"], row["exposed_ns"]) for row in rows] == [
        (2, 30, 5, 25), (1, 15, 10, 5),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["memcpy", "memset"])
def test_copies_and_memsets_of_an_h200_are_those_of_sql(kind):
    counted = [row["count"] for row in table(viewed("communication", OURS), "copies") if kind in row["name"]]
    assert sum(counted) == value(OURS, f"SELECT count(*) FROM CUPTI_ACTIVITY_KIND_{kind.upper()}")


def test_the_most_exposed_module_comes_first(tmp_path):
    done = [("layer 0", ALL_GATHER, 10, 30), ("mm", "sgemm", 10, 30), ("layer 1", ALL_GATHER, 40, 50)]
    report = ranks_of(tmp_path, done)
    rows = table(viewed("communication", report), "communication")
    assert [(row["range"], row["exposed_ns"]) for row in rows] == [("layer 1", 10), ("layer 0", 0)]


@pytest.mark.parametrize("named", ["{}", "train/{}"])
def test_modules_sum_their_phases_and_collectives_as_means_of_the_gpus(tmp_path, named):
    """Of `a`, 40 + 20 ns on one GPU and 12 on the other, of which compute hides 5; of `b`, 20 and 31."""
    first = [("a", ALL_REDUCE, 10, 50), ("a", ALL_GATHER, 60, 80), ("b", ALL_REDUCE, 100, 120)]
    second = [("a", ALL_REDUCE, 40, 52), ("b", ALL_REDUCE, 90, 121), ("c", "sgemm", 45, 50)]
    phases = [(named.format("forward"), 0, 19), (named.format("backward"), 20, 59)]
    report = ranks_of(tmp_path, first, second, ranges=phases)
    document = viewed("communication", report)
    assert [tuple(row.values()) for row in table(document, "modules")] == [
        ("a", 36, 33.5, 33.5 / 59), ("b", 25.5, 25.5, 25.5 / 59),
    ]  # fmt: skip
    ranges = table(document, "communication")
    assert sum(row["exposed_ns"] for row in ranges) / 2 == 59
    assert "Communication by module, in all phases, ns" in " ".join(screen(document).split())


def test_ranks_wait_for_the_last_to_start(tmp_path):
    first = [("a", ALL_REDUCE, 10, 50), ("b", ALL_REDUCE, 100, 120)]
    second = [("a", ALL_REDUCE, 40, 52), ("b", ALL_REDUCE, 90, 121)]
    document = viewed("communication", ranks_of(tmp_path, first, second))
    found = {(row["range"], row["gpu"]): row for row in table(document, "communication")}
    waited = {place: (row["waiting_ns"], row["transferring_ns"]) for place, row in found.items()}
    assert waited == {
        ("a", "GPU 0"): (30, 10), ("a", "GPU 1"): (0, 12), ("b", "GPU 0"): (0, 20), ("b", "GPU 1"): (10, 21),
    }  # fmt: skip
    last = by(document, "slowest", "gpu")
    waited = [(last[gpu]["count"], last[gpu]["others_waited_ns"]) for gpu in ("GPU 0", "GPU 1")]
    assert waited == [(1, 10), (1, 30)]


def test_a_range_narrows_the_rows_but_not_what_ranks_wait_for(tmp_path):
    """The second collective of `b` alone would be the first of its kind: it is aligned among all."""
    first = [("a", ALL_REDUCE, 10, 50), ("b", ALL_REDUCE, 100, 120)]
    second = [("a", ALL_REDUCE, 40, 52), ("b", ALL_REDUCE, 90, 121)]
    report = ranks_of(tmp_path, first, second)
    whole, part = (viewed("communication", report, within=within) for within in (None, "B"))
    rows = table(whole, "communication")
    assert table(part, "communication") == [row for row in rows if row["range"] == "b"]
    assert {row["gpu"]: row["waiting_ns"] for row in table(part, "communication")} == {"GPU 0": 0, "GPU 1": 10}
    assert [row["time_ns"] for row in table(part, "gpus")] == [20, 31]
    assert [(row["gpu"], row["others_waited_ns"]) for row in table(part, "slowest")] == [("GPU 0", 10)]
    assert "match 'B'" in told(part)


def test_a_range_that_communicates_nothing_is_refused_with_those_that_do(tmp_path):
    report = ranks_of(tmp_path, [("layer 0", ALL_GATHER, 10, 30), ("mm", "sgemm", 10, 30)])
    with pytest.raises(ReportError, match=r"matches 'mm'. It is in: layer"):
        viewed("communication", report, within="mm")


def of_ranks(paths, **options):
    """Answer the view's question of several ranks in this process."""
    asked = [subject(path, name="communication", **options) for path in paths]
    held = [(one.report, communication.held_by(one)) for one in asked]
    return communication.of_ranks([Ranked(path.name, one) for path, one in zip(paths, held, strict=True)])


def test_a_range_narrows_several_ranks(tmp_path):
    paths = [kineto(tmp_path, rank, (2000, 4000)) for rank in (0, 1)]
    rows = table(of_ranks(paths, within="forward > layers.1", whole=True), "communication")
    assert len(rows) == 2
    assert all("layers" in row["range"] for row in rows)
    with pytest.raises(ReportError, match=r"It is in: forward > layers.\*"):
        of_ranks(paths, within="layers.2")


def told(document):
    return " ".join(document.notes)


def answered(view, report, **asked):
    """Return the notes of a view, or the sentence with which it refuses."""
    try:
        return told(viewed(view, report, **asked))
    except ReportError as error:
        return str(error)


def test_waiting_is_unknown_where_a_rank_has_one_more(tmp_path):
    one = ("a", ALL_REDUCE, 10, 50)
    document = viewed("communication", ranks_of(tmp_path, [one, ("b", ALL_REDUCE, 60, 70)], [one]))
    assert "The waiting of all_reduce cannot be separated from transferring: its ranks have" in told(document)
    assert {row["waiting_ns"] for row in table(document, "communication")} == {None}


@pytest.mark.parametrize(
    ("starts", "says"), [((10, 30), "at different times"), ((10, 10, 10), "does not say which ranks it joins")]
)
def test_ranks_of_a_collective_are_not_guessed(tmp_path, starts, says):
    report = ranks_of(tmp_path, *([("a", ALL_REDUCE, start, start + 10)] for start in starts))
    assert says in told(viewed("communication", report))


def test_send_and_receive_wait_and_transfer_at_once(tmp_path):
    document = viewed("communication", ranks_of(tmp_path, *[[("a", SEND_RECV, 10, 20)]] * 2))
    assert "The waiting of send/recv cannot be separated from transferring" in told(document)
    assert "waiting" not in screen(document).splitlines()[3]


def test_pytorchs_range_says_what_a_send_recv_kernel_is_of(tmp_path):
    report = ranks_of(tmp_path, *[[("nccl:all_to_all", SEND_RECV, 10, 20)]] * 2, ranges=[("moe", 0, 100)])
    rows = table(viewed("communication", report), "communication")
    assert [(row["range"], row["collective"]) for row in rows] == [("moe", "all_to_all")] * 2


GENERIC, CUSTOM = "ncclDevKernel_Generic_2(ncclDevKernelArgsStorage<4096ul>)", "vllm::cross_device_reduce_1stage"


@pytest.mark.parametrize(
    ("operator", "kernel", "collective"),
    [
        ("vllm::all_reduce", GENERIC, "all_reduce"),
        ("c10d::_allgather_base_", GENERIC, "all_gather"),
        ("aten::scatter", GENERIC, OTHER),  # PyTorch's own moves elements, not messages
        ("vllm::all_reduced_norm", "ncclDevKernel_AllGather_RING_LL", "all_gather"),  # a kernel's own name first
        ("vllm::outplace", GENERIC, OTHER),
        ("layer", CUSTOM, "all_reduce"),
    ],
)
def test_operator_says_what_a_kernel_without_a_name_is_of(tmp_path, operator, kernel, collective):
    report = ranks_of(tmp_path, *[[(operator, kernel, 10, 20)]] * 2, ranges=[("moe", 0, 100)])
    assert {row["collective"] for row in table(viewed("communication", report), "communication")} == {collective}


@pytest.mark.parametrize(("per_step", "time_ns"), [(False, 40), (True, 20)])
def test_steps_divide_each_gpus_figures_but_not_those_of_a_step(per_step, time_ns):
    document = viewed("communication", communicating(ranks=2), per_step=per_step)
    rows = table(document, "communication")
    assert [(row["range"], row["time_ns"]) for row in rows] == [("forward", time_ns)] * 2
    steps = [(row["step"], row["gpu"], row["time_ns"]) for row in table(document, "steps")]
    counted = 1 if per_step else 2  # of two steps, nothing shows when the first began
    assert steps == [(step, gpu, 20) for step in range(counted) for gpu in ("GPU 0", "GPU 1")]


def test_a_report_without_communication_says_so_in_a_sentence(tmp_path):
    report = build(tmp_path, ranges=[Range("forward", 0, 99)], **launched((10, 20), name="sgemm"))
    assert answered("communication", report).startswith("No kernel communicates between GPUs")


UNKNOWN = "void secret::kernel<4>(int)"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("dpsk::ep::internode::combine", ""),
        (UNKNOWN, "No kernel is known to communicate between GPUs, but 66.7% of the kernel time is in"),
        ("sgemm", "No kernel communicates between GPUs"),
    ],
)  # fmt: skip
def test_no_kernel_communicates_only_where_all_kernels_are_known(tmp_path, name, sentence):
    words = answered("communication", ranks_of(tmp_path, [("a", name, 10, 30), ("b", "sgemm", 40, 50)]))
    assert sentence in words
    assert not sentence or ("No kernel communicates" in words) == (name == "sgemm")


@pytest.mark.parametrize(
    "asked", [{"per_step": True}, {"per_step": True, "phase": "forward"}, {"phase": "forward"}]
)
def test_communication_outside_of_what_is_shown_is_not_said_to_be_absent(tmp_path, asked):
    done = [("warm-up", ALL_REDUCE, 10, 30), ("none", ALL_REDUCE, 40, 50), ("forward", "sgemm", 60, 90)]
    report = ranks_of(tmp_path, done, ranges=[("step", 39, 55)])
    words = answered("communication", report, **asked)
    assert "All communication between GPUs (30 ns) is in another phase" in words
    assert "No kernel" not in words


def test_a_recording_that_ended_early_is_not_of_one_gpu(tmp_path):
    early = {"NVTX_KERNELS_ENDED_EARLY": "the disk is full"}
    report = build(tmp_path, metadata=early, **launched((10, 20), name="sgemm"))
    words = answered("communication", report)
    assert "known to communicate between GPUs, but the recording is not complete" in words


def test_a_job_of_several_ranks_is_not_of_one_gpu(tmp_path):
    trace = write_kineto(
        tmp_path / "rank0.pt.trace.json",
        Program([Block("forward", 0, 1000)], [Call(0, 10, 20)], [Ran(0, 100, 200, "sgemm")]),
        distributedInfo={"rank": 0, "world_size": 8},
    )
    assert "known to communicate between GPUs, but the job has 8 ranks" in answered("communication", trace)


FSDP = ("FSDP::pre_forward (layers.0)", "FSDP::all_gather (layers.1)")


def kineto(folder, rank, *times, ranks="[0, 1]", group=2, elements=1 << 20, own=None, **job):
    """Write the trace of a rank whose forward gathers in FSDP2's ranges at these times, ns."""
    said = (
        ("Collective name", "_allgather_base"), ("In msg nelems", elements), ("Out msg nelems", elements * 2),
        ("dtype", "BFloat16"), ("Group size", group), ("Process Group Name", "0"), ("Process Group Ranks", ranks),
    )  # fmt: skip
    blocks = [Block("forward", 0, 10**6), *(Block(name, 10 + n, 10**6 - n) for n, name in enumerate(FSDP))]
    calls = [Call(n, 1000 + 100 * n, 1050 + 100 * n) for n in range(len(times))]
    work = [Ran(n, start, end, ALL_GATHER, said=said) for n, (start, end) in enumerate(times)]
    return write_kineto(
        folder / f"rank{rank}.pt.trace.json",
        Program(blocks, calls, work),
        distributedInfo={"rank": own or rank, **job},
    )


def test_fsdps_ranges_name_the_module_that_is_gathered(tmp_path):
    document = viewed("communication", kineto(tmp_path, 0, (2000, 4000)), whole=True)
    (row,) = table(document, "communication")
    assert (row["range"], row["collective"]) == ("forward > layers.1", "all_gather")


def test_bytes_and_bus_bandwidth_are_those_of_nccls_tests(tmp_path):
    (row,) = table(viewed("communication", kineto(tmp_path, 0, (2000, 4000))), "communication")
    assert row["bytes"] == 2 * 2 * (1 << 20)
    assert row["bus_bytes_per_s"] == pytest.approx(row["bytes"] / 2 / 2000e-9)
    assert (row["waiting_ns"], row["transferring_ns"]) == (None, None)


def test_a_trace_of_pytorch_without_sizes_is_not_referred_to_such_traces(tmp_path):
    program = Program([Block("forward", 0, 1000)], [Call(0, 10, 20)], [Ran(0, 100, 200, ALL_GATHER)])
    document = viewed("communication", write_kineto(tmp_path / "rank0.pt.trace.json", program))
    (note,) = [note for note in document.notes if "sizes" in note.lower()]
    assert "this trace has none" in note
    assert "traces of PyTorch's profiler have them" not in note


@pytest.mark.parametrize("damaged", ["many", -1, 1 << 60, None, True])
def test_what_is_no_size_is_no_size(tmp_path, damaged):
    document = viewed("communication", kineto(tmp_path, 0, (2000, 4000), elements=0))
    text = (tmp_path / "rank0.pt.trace.json").read_text().replace('nelems": 0', f'nelems": {json.dumps(damaged)}')
    (tmp_path / "odd.pt.trace.json").write_text(text)
    assert table(document, "communication")[0]["time_ns"] == 2000
    (row,) = table(viewed("communication", tmp_path / "odd.pt.trace.json"), "communication")
    assert (row["bytes"], row["bus_bytes_per_s"]) == (None, None)


def test_several_ranks_traces_are_aligned_whatever_their_clocks(tmp_path, capsys):
    paths = [kineto(tmp_path, 0, (2000, 4000)), kineto(tmp_path, 1, (502_500, 503_000))]
    assert view.main(["communication", *map(str, paths), "--format", "json"]) == 0
    tables = {one["key"]: one["rows"] for one in json.loads(capsys.readouterr().out)["tables"]}
    first, second = tables["communication"]
    assert (first["gpu"], first["waiting_ns"], first["transferring_ns"]) == ("rank0.pt.trace.json", 1500, 500)
    assert (second["gpu"], second["waiting_ns"], second["transferring_ns"]) == ("rank1.pt.trace.json", 0, 500)
    assert first["bus_bytes_per_s"] == pytest.approx(first["bytes"] / 2 / 500e-9)
    assert [(row["gpu"], row["others_waited_ns"]) for row in tables["slowest"]] == [("rank1.pt.trace.json", 1500)]


def test_reports_of_one_rank_twice_are_not_aligned(tmp_path):
    paths = [kineto(tmp_path, 1, (2000, 4000)), kineto(tmp_path, 2, (2000, 3000), own=1)]
    assert "the reports are not of one run's ranks" in told(of_ranks(paths))


@pytest.mark.parametrize(
    ("ranks", "group", "job", "waits"),
    [
        ("[0, 1, 2, 3]", 4, {}, False), ("[0, 1, 2, 3]", None, {}, False), (None, 4, {}, False),
        (None, "4", {}, False), (None, None, {"world_size": 128}, False), (None, 2, {"world_size": 128}, False),
        ("[0, 1, ..., 127]", None, {"world_size": 128}, False), ("[0, 1]", 2, {"world_size": 128}, True),
        (None, 2, {"world_size": 2}, True), (None, None, {}, True),
    ],
)  # fmt: skip
def test_nothing_is_said_of_waiting_where_ranks_are_missing(tmp_path, ranks, group, job, waits):
    paths = [kineto(tmp_path, rank, (2000, 4000 + rank), ranks=ranks, group=group, **job) for rank in (0, 1)]
    answer = of_ranks(paths)
    waiting = [row["waiting_ns"] or 0 for row in table(answer, "communication")]
    assert sorted(waiting) == ([0, 1] if waits else [0, 0])
    assert ("slowest" in {one.key for one in answer.tables}) == waits
    assert ("not all of its ranks are here" in told(answer)) == (not waits)
    assert ("last rank whose report is here" in told(answer)) == (waits and not group)


def test_another_view_still_takes_one_report(capsys):
    path = str(DATA / "h200_train_fp32.sqlite")
    assert view.main(["idle", path, str(DATA / "h200_compiled.sqlite")]) == 2
    assert "takes one report" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("collective", "ranks", "factor"),
    [
        ("all_reduce", 4, 1.5), ("all_gather", 4, 0.75), ("reduce_scatter", 2, 0.5), ("all_to_all", 8, 0.875),
        ("broadcast", 4, 1.0), ("reduce", 4, 1.0), ("send/recv", 2, 1.0), ("all_reduce", 0, np.nan),
        (OTHER, 4, np.nan),
    ],
)  # fmt: skip
def test_bus_factors(collective, ranks, factor):
    assert bus_factor(collective, ranks) == pytest.approx(factor, nan_ok=True)


@pytest.mark.parametrize(
    ("name", "collective"),
    [
        (ALL_REDUCE, "all_reduce"), (ALL_GATHER, "all_gather"), (SEND_RECV, "send/recv"),
        ("ncclKernel_ReduceScatter_RING_LL_Sum_float(ncclWorkElem)", "reduce_scatter"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "reduce"), ("ncclBroadcastRingLLKernel_copy_i8", "broadcast"),
        ("ncclDevKernel_Generic", OTHER), ("_allgather_base", "all_gather"), ("allreduce_coalesced", "all_reduce"),
        ("all_to_allv", "all_to_all"), ("barrier", "all_reduce"), ("send", "send/recv"), ("scatter", "scatter"),
        ("two_shot_all_reduce_kernel<ncclSendRecv>", "all_reduce"), ("dpsk::ep::internode::combine", "all_to_all"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*)", "all_reduce"),
        ("sglang::cross_device_reduce_2stage", "all_reduce"),
        ("reduce_scatter_cross_device_store", "reduce_scatter"),
        ("cross_device_copy", OTHER), ("ipc_rsag_ring_push_param_kernel", "all_reduce"),
    ],
)  # fmt: skip
def test_names_of_collectives(name, collective):
    assert named(name) == collective


def test_names_of_these_kernels_are_those_of_communication():
    names = [ALL_REDUCE, ALL_GATHER, SEND_RECV, "ncclDevKernel_Generic"]
    assert set(categorize(names)) == {"communication"}


@pytest.mark.parametrize(
    ("path", "module"),
    [
        (("step 3", "forward", "layer 0"), ("forward", "layer 0")),
        (("forward", *FSDP), ("forward", "layers.1")),
        (("forward", "layers.0", *FSDP), ("forward", "layers.1")),
        (("forward", "FSDP::root_pre_forward"), ("forward",)),
        (("FSDP::backward_prefetch for layers.2",), ("layers.2",)),
        (("Forward 3", "layer 0"), ("Forward *", "layer 0")),
        (("PP:0SEND_F3",), ("PP:0SEND_F",)),
        (("PP:1REDUCE_GRAD",), ("PP:1REDUCE_GRAD",)),
        (("moe", "c10d::alltoall_base_", "record_param_comms"), ("moe",)),
        ((), ()),
    ],
)  # fmt: skip
def test_paths_lead_to_modules(path, module):
    assert module_of()(path) == module
