"""Names in a shared copy: private values are cut out, and ranges renamed, without a change of any figure."""

import json

import pytest
from nvtx_kernels.analysis.readers.written import FLOPS_MARK
from nvtx_kernels.analysis.scrub.allowed import Role
from nvtx_kernels.analysis.scrub.renaming import Names
from nvtx_kernels.analysis.vocabulary import without_suffixes

from tests.analysis.making import private
from tests.analysis.making.bundled import OTHERS, OURS, needs_shared, unpacked
from tests.analysis.making.copies import answers, inside, rows, scrubbed

RENAMED = [
    (OURS[0], "auto"),
    pytest.param(OURS[3], "keep", marks=pytest.mark.slow),
    *(pytest.param(OTHERS[at], "keep", marks=needs_shared) for at in (1, 4)),
    *(pytest.param(OTHERS[at], "auto", marks=needs_shared) for at in (4, 11)),
]

LAMBDA = "void run<{lambda(int) at /home/jdoe/model/x.cu:12:3}>(T*)"


@pytest.mark.parametrize(
    ("table", "column", "name", "kept"),
    [
        ("CUPTI_ACTIVITY_KIND_KERNEL", "demangledName", LAMBDA, "void run<{lambda(int) at path_1:12:3}>(T*)"),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "demangledName", "triton_/home/a/b_0", "triton_/home/a/b_0"),
        ("NVTX_EVENTS", "textId", "load /home/jdoe/data.bin", "load path_1"),
        ("NVTX_EVENTS", "textId", "/encoder/layer.0/attention/MatMul", "/encoder/layer.0/attention/MatMul"),
        ("NVTX_EVENTS", "textId", f"ask jd@example.org ({private.TOKEN})", "ask email_1 (secret_1)"),
        ("NVTX_EVENTS", "textId", f"login token={private.PASSWORD}", "login secret_1"),
        ("NVTX_EVENTS", "textId", "tokens: 4096, forward/backward", "tokens: 4096, forward/backward"),
        ("ThreadNames", "nameId", "planted_thread", None),
        ("ThreadNames", "nameId", "jdoe_autograd_x", "autograd"),
    ],
)
def test_names_lose_what_is_private_in_them(tmp_path, table, column, name, kept):
    report = unpacked("h200_train_fp32.sqlite", tmp_path)
    events = " WHERE eventType = 59" if table == "NVTX_EVENTS" else ""
    (number,) = rows(report, f"SELECT max({column}) FROM {table}{events}")[0]
    inside(report, "UPDATE StringIds SET value = ? WHERE id = ?", name, number)
    found = rows(scrubbed(report), f"SELECT value FROM StringIds WHERE id = {number}")
    assert found == ([(kept,)] if kept else [])


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("aten::mm, seq = 12, op_id = 3, sizes = [[1]], input_op_ids = [(1,0)]", "aten::mm, seq = 12"),
        ("aten::mm, op_id = 3, sizes = [[1]]", "aten::mm"),
        ("mine, sizes = 1, op_id = 3", "mine, sizes = 1, op_id = 3"),
        ("mine, input_op_ids = 3", "mine, input_op_ids = 3"),
        ("mine, seq = 3x", "mine, seq = 3x"),
    ],
)
def test_operators_keep_the_number_that_links_them_only(name, kept):
    assert Names().rules[Role.RANGE](name) == kept


def test_host_of_the_report_is_cut_out_of_its_ranges(tmp_path):
    report = private.plant(unpacked(OURS[1], tmp_path))
    inside(report, "INSERT INTO StringIds VALUES (900100, ?)", f"rank 0 on {private.HOST}")
    inside(report, "UPDATE NVTX_EVENTS SET textId = 900100 WHERE rowid = 4")
    assert rows(scrubbed(report), "SELECT value FROM StringIds WHERE id = 900100") == [("rank 0 on host_1",)]


def test_own_mark_keeps_known_facts_only_and_the_others_are_counted(tmp_path, capsys):
    report = unpacked("h200_compiled.sqlite", tmp_path)
    facts = {"size": "tiny", "host": private.HOST, "flops": {"forward": 3, "backward": "x"}, "torch": ["2.11"]}
    inside(report, "INSERT INTO StringIds VALUES (900100, ?)", "nvtx-kernels.run " + json.dumps(facts))
    inside(report, "UPDATE NVTX_EVENTS SET textId = 900100 WHERE eventType = 34")
    (text,) = rows(scrubbed(report), "SELECT value FROM StringIds WHERE id = 900100")[0]
    kept = json.loads(text.removeprefix("nvtx-kernels.run "))
    assert kept == {"size": "tiny", "flops": {"forward": 3}, "torch": None}
    assert capsys.readouterr().out.endswith("cut out of names: 3 unknown fact.\n")


def test_string_that_is_a_kernel_and_a_range_is_renamed_as_a_range_only(tmp_path):
    report = unpacked("h200_train_fp32.sqlite", tmp_path)
    (kernel, name), *_ = rows(
        report, "SELECT id, value FROM StringIds JOIN CUPTI_ACTIVITY_KIND_KERNEL ON id = demangledName"
    )
    inside(report, "UPDATE NVTX_EVENTS SET textId = ? WHERE rowid = 10", kernel)
    copy = scrubbed(report, "--rename-ranges")
    assert rows(copy, f"SELECT value FROM StringIds WHERE id = {kernel}") == [(name,)]
    renamed = rows(copy, "SELECT value FROM StringIds JOIN NVTX_EVENTS e ON id = textId WHERE e.rowid = 10")
    assert renamed[0][0].startswith("range x")


@pytest.mark.parametrize("name", [b"caf\xe9 \xff", b"a\x00b", "naïve – \U0001f600".encode(), b""])
def test_names_in_any_encoding_go_along_unharmed(tmp_path, name):
    report = unpacked(OURS[0], tmp_path)
    ((number,),) = rows(report, "SELECT max(textId) FROM NVTX_EVENTS WHERE eventType = 59")
    inside(report, f"UPDATE StringIds SET value = CAST(? AS TEXT) WHERE id = {number}", name)
    inside(report, "UPDATE NVTX_EVENTS SET textId = NULL, text = CAST(? AS TEXT) WHERE rowid = 7", name)
    copy = scrubbed(report)
    assert rows(copy, f"SELECT CAST(value AS BLOB) FROM StringIds WHERE id = {number}") == [(name,)]
    assert rows(copy, "SELECT CAST(text AS BLOB) FROM NVTX_EVENTS WHERE rowid = 7") == [(name,)]


NAMES = """SELECT coalesce(value, text, '') FROM NVTX_EVENTS e LEFT JOIN StringIds ON id = textId
           WHERE eventType IN (59, 60) ORDER BY e.rowid"""


def ranges(report, capsys, operators):
    """Return the ranges of the answer in JSON, by their paths."""
    said = answers(report, capsys, ["--format", "json", "--operators", operators])[1]
    entries = json.loads(said)["ranges"]
    return {tuple(entry["path"]): {key: entry[key] for key in entry.keys() - {"path"}} for entry in entries}


@pytest.mark.parametrize(("name", "operators"), RENAMED)
def test_renamed_ranges_are_counted_as_before(tmp_path, capsys, name, operators):
    report = unpacked(name, tmp_path)
    copy = scrubbed(report, "--rename-ranges")
    old, new = ([without_suffixes(name)[0] for (name,) in rows(path, NAMES)] for path in (report, copy))
    names = dict(zip(old, new, strict=True))
    assert new == [names[name] for name in old]
    assert len(set(new)) == len(set(old))
    counted = ranges(report, capsys, operators)
    renamed = {tuple(names[name] for name in path): entry for path, entry in counted.items()}
    assert renamed == ranges(copy, capsys, operators)
    assert set(names) - set(new)


def shared_counts(ranges, *, rename=False):
    """Return the counts of a mark in a shared copy."""
    said = {"part": 0, "host": "alice-laptop", "ranges": ranges, "calls": {"forward > Net": 1}}
    said["uncounted"] = {"aten.mul": [3, 96], "acme_secret.op": [1, 8]}
    kept = Names(rename_ranges=rename).rules[Role.MARK](f"{FLOPS_MARK}{json.dumps(said)}")
    return json.loads(kept.removeprefix(FLOPS_MARK))


def test_counts_are_shared_without_anything_that_annotation_does_not_write():
    figures = [2, 64, {"bf16": 128}]
    paths = {"forward > load /home/jdoe/x.bin": figures, "broken": ["text", 1, {}]}
    ranges = {"forward": paths, "mine": {"a": figures}}
    assert shared_counts(ranges) == {
        "part": 0,
        "calls": {"forward > Net": 1},
        "uncounted": {"aten.mul": [3, 96]},
        "ranges": {"forward": {"forward > load path_1": figures}},
    }


def test_counts_follow_the_new_names_of_ranges():
    figures = [2, 64, {}]
    kept = shared_counts({"forward": {"forward > Net > layer *": figures}}, rename=True)
    assert kept["calls"] == {"forward > range xa": 1}
    assert kept["ranges"] == {"forward": {"forward > range xa > range xb *": figures}}
