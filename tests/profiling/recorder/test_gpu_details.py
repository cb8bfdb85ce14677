from nvtx_kernels.profiling.recorder.gpu_details import saved_details

# As PyTorch 2.11 saved it on an H200, shortened: a kernel, a graph's two, a copy, and what is no GPU work.
SAVED = """
{
  "schemaVersion": 1,
  "traceEvents": [
  {
    "ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 420, "tid": 420,
    "ts": 4317172610700.100, "dur": 60.5,
    "args": {
      "External id": 520,"Record function id": 0, "Ev Idx": 26
    }
  },
  {
    "ph": "X", "cat": "kernel", "name": "void at::native::reduce_kernel<512, 1, {lambda(float)#1}>(int)", "pid": 0, "tid": 7,
    "ts": 4317172619416.944, "dur": 2.048,
    "args": {
            "queued": 0, "device": 0, "context": 1,      "stream": 7, "correlation": 710,      "grid": [3, 1, 1],      "block": [128, 1, 1]
    }
  },
  {
    "ph": "X", "cat": "kernel", "name": "void at::native::elementwise_kernel<128, 2>(int)", "pid": 0, "tid": 7,
    "ts": 4317172619414.225, "dur": 1.280,
    "args": {
            "queued": 0, "device": 0, "context": 1,      "stream": 7, "correlation": 710,      "grid": [1, 1, 1],      "block": [64, 1, 1]
    }
  },
  {
    "ph": "f", "id": 710, "pid": 0, "tid": 7, "ts": 4317172619414.225,
    "cat": "ac2g", "name": "ac2g", "bp": "e"
  },
  {
    "ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "pid": 0, "tid": 7,
    "ts": 4317172611491.699, "dur": 0.992,
    "args": {
      "External id": 19,      "device": 0, "context": 1,      "stream": 7, "correlation": 176,      "bytes": 3108, "memory bandwidth (GB/s)": 3.1330645161290325
    }
  }
  ]
}
"""  # noqa: E501


def test_details_are_found_by_kind_and_correlation_in_order_of_start():
    found = saved_details(SAVED.splitlines(keepends=True))
    assert set(found) == {("kernel", 710), ("gpu_memcpy", 176)}
    assert [details["grid"][0] for details in found["kernel", 710]] == [1, 3]
    assert [details["bytes"] for details in found["gpu_memcpy", 176]] == [3108]


def test_what_is_cut_off_or_damaged_is_left_out():
    damaged = SAVED.replace('"grid": [3, 1, 1]', '"grid": [3, 1, nan').splitlines(keepends=True)[:-5]
    assert set(saved_details(damaged)) == {("kernel", 710)}
    assert len(saved_details(damaged)["kernel", 710]) == 1


def test_what_is_not_there_has_no_details():
    assert not saved_details([])["kernel", 1]
