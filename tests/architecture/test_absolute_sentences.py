"""Every sentence that tells of all or of none is listed once, with what proves it: a new one needs a row here."""

import ast
import re
from pathlib import Path

import pytest
from nvtx_kernels.analysis.report import per_step
from nvtx_kernels.analysis.views.verdict import verdict

from tests.analysis.making.made_reports import report_of, row

ROOT = Path(__file__).parents[2]
ROOMS = ("analysis", "profiling", "nvtx_kernels")
ABSOLUTE = re.compile(
    r"(?:^|[.;:,] |\()(?:No|Nothing|None|Neither|Every|Only)\b (?!such)|all of it|none is|[Tt]here (?:is|are) no\b"
    r"|(?:has|have|contains) no\b"
)
#: How a sentence begins, or what is in it, and what proves it: a test, or the condition under which it is said.
PROVED = {
    # of the GPU's work
    "No kernel communicates between GPUs": "test_no_kernel_communicates_only_where_all_kernels_are_known",
    "No kernel is known to communicate between GPUs": "test_a_job_of_several_ranks_is_not_of_one_gpu",
    "not all of its ranks are here": "test_nothing_is_said_of_waiting_where_ranks_are_missing",
    "The sizes of messages are unknown": "no kernel of the answer has bytes",
    "No communication is in a range that": "test_a_range_that_communicates_nothing_is_refused_with_those_that_do",
    "none is known to be": "test_kernels_of_no_known_category_are_in_the_first_lines",
    ", all of it in": "test_all_of_a_step_is_in_a_phase_only_if_no_other_has_kernels",
    "is exposed: compute runs at the same time": "test_all_views_agree_with_each_other_and_with_brute_force",
    "The report has no launch of": "test_work_whose_launch_is_lost_is_said_of_figures_per_step",
    "because the report has no launch of it": "test_work_in_no_range_gets_the_remedy_of_its_reason",
    "that CUDA graphs replayed are placed by": "test_report_and_doctor_say_how_to_have_the_modules_of_a_replay",
    "No work was launched inside a range of its own thread": "nsys's own counting has no row",
    "Nothing was allocated or freed in the measured part": "test_nothing_in_the_measured_part_is_said",
    "Nothing was allocated or freed in a": "test_a_range_without_a_kernel_is_found_and_an_unknown_one_refused",
    "The report has no kernels whose launches": "no row of kernels",
    "No kernel name{} contains": "test_a_kernel_is_found_by_its_exact_name_before_parts_of_it",
    "The selection contains no kernels": "test_copies_alone_are_no_kernels_to_rank",
    "The selection contains no {}. Leave": "test_copies_alone_are_no_kernels_to_rank",
    "It has no kernels": "no row of kernels in a phase",
    "one of the phases has no kernels": "a row of the table has a dash",
    "There are no {} kernels": "no work of the phase, and none that is in no phase",
    "No kernel is known to be": "test_a_recording_of_a_cpu_speaks_of_operators_alone_and_is_dashes_beside_a_gpu",
    # of ranges
    "No range with GPU work opens a phase or a step": "no row of phase_times has ranges",
    "what is shown has no work inside": ("test_attention_outside_of_what_is_shown_is_not_said_to_have_no_ranges"),
    "No range is named as a part of attention": "no row of parts_of",
    "work is inside the ranges of attention": "test_a_phase_without_attention_is_not_taken_for_a_report_without",
    "work is inside {}": "the phase has no time in the parts",
    "No range opens a phase or a step, so the span": "test_without_phases_and_steps_the_span_is_that_of_all_work",
    "No range opens a phase{}, so": "test_a_report_says_which_ranges_it_lacks_and_what_they_would_add",
    "No range opens the forward phase": "test_a_report_says_which_ranges_it_lacks_and_what_they_would_add",
    "No range opens {}": "the phase has kernels and no range of its name",
    "The report has no {}, so": "test_a_report_says_which_ranges_it_lacks_and_what_they_would_add",
    "No range contains any of the work": "test_what_is_not_there_is_a_sentence_and_no_empty_table",
    "No requested range contains work of a measured step": "test_ranges_outside_the_steps_leave_no_empty_table",
    "No range matches": "test_order_and_whole_names_of_wildcards_matter",
    "No range of the forward is named after": "no row of the table",
    "The report has no NVTX push/pop ranges": "test_what_is_not_there_is_a_sentence_and_no_empty_table",
    "there are no {}, so no kernel": "test_what_is_wrong_is_named_with_its_remedy",
    "Only {} has ranges inside": "test_ranges_are_compared_where_both_reports_divide_alike_and_that_is_said",
    "The report has no {} work": "no work of the phase in the report",
    "has no name in the report": "test_a_nameless_autograd_thread_is_told_but_not_wrong",
    # of steps and settings
    "has no measured step ranges": "test_without_counts_or_steps_the_view_says_what_to_do",
    "None of the reports has measured step": "test_a_rank_without_steps_costs_its_row_where_figures_are_per_step",
    "Only one of the": "test_totals_are_compared_with_both_denominators_named_where_one_report_has_no_steps",
    "The report has no {} to compare a time with": "the phase is no row of the table",
    "No FLOPs or bytes were": "test_ranges_in_which_nothing_was_counted_are_refused_with_those_that_have_counts",
    "is not in the table of GPUs' peaks": "the table has no row of that name",
    "The table of GPUs' peaks has no": "the GPU's row has no figure of that kind",
    "there are no peaks to compare with": "test_a_cpu_has_no_peaks_and_the_screen_says_so",
    "No run without a profiler has the settings": "test_reports_stand_beside_their_runs",
    "Neither report has a": "test_a_rule_that_names_nothing_is_wrong_usage_and_lists_what_there_is",
    "No Dask scheduler answers": "test_silent_scheduler_is_one_sentence",
    "reports can be read": "each of them raised an error",
    "in the last column, of all of it": "a heading: the column's denominator",
    "No range is called": "an exact look-up found none; the ranges that there are follow",
    "The report has no NVTX domain": "an exact look-up found none; the domains that there are follow",
    "The report has no kernel {}": "an exact look-up found none; the ranges that there are follow",
    "No NVTX filter selects": "test_kernels_outside_ranges_are_taken_by_name_and_order",
    "The trace contains no GPU work": "no row of work and none of launches",
    "contains no work: the profiler": "test_a_report_without_work_says_what_it_has_instead",
    "it has no traceEvents": "the key is not in the object",
    "one of its events has no end": "the text ended inside it",
    "{} has no column {}: it is not": "the file's schema",
    "has no traces of a capture": "the folder has no such file",
    "it is an export that was trimmed": "the table or column is not in the schema",
    "contains no kernel and no copy": "no row of work",
    "has no table {}, which rocprofv3": "the table is not in the schema",
    "The file has no HIP calls": "no row of calls",
    "it has no records of them": "the file was read, and has none",
    "has no files of NCCL Inspector": "the folder has no such file",
    "No other setting: the program has its own": "the parser refuses them",
    "contains no reports": "no file of the folder has a reader's ending",
    "None of {} reports can be ranked": "each of them raised an error",
    "None of {} summaries can be read": "each of them raised an error",
    "ranks have no summary here": "the numbers below world_size without a file",
    "No summary has measured steps": "the sum of their steps is 0",
    # of PyTorch traces with stacks
    "was launched in a Python function": "test_reports_without_functions_are_refused",
    "{} has no Python functions": "only a PyTorch trace can have any",
    "has no calls of modules": "test_files_without_names_are_refused",
    "{} has no names of modules": "the file's schema does not fit",
    # of recording
    "was never called": "test_a_note_tells",
    "No step ended: nothing ran": "no measured step and none of warm-up, and a block with work is one step",
    "Every step was warm-up": "no measured step, and at least one of warm-up",
    "No model was given": "no model was given, and not every one was asked for",
    "The report has no memory by range": "test_another_profiler_is_left_alone_and_said",
    "a backward has no ranges": "logged where an error kept annotation from it",
    "No kernels were profiled": "ncu's own message",
    # of comparisons
    "No change: ": "three or more steps a side, and the medians or the rank test do not differ",
    "nothing says how much times vary": "a side has no measured steps",
    "has any: {}": "one of the two times is 0",
    # of words, files and machines
    "here is no {}": "an exact look-up found none; what may be meant follows",
    "is unknown: the report has no launch": "test_work_without_a_launch_has_an_unknown_cause",
    "The GPU is never idle": "test_a_gpu_without_gaps_is_told_in_a_sentence",
    "here is no phase": "an exact look-up found none; the phases follow",
    "here is no view": "an exact look-up found none; the views follow",
    "here is no report": "an exact look-up found none",
    "there is no command or report": "no command and no file is called so",
    "No answer is written as": "no presenter has the suffix",
    "No process reads from it": "the system said ENXIO",
    "has no attribute": "Python's own sentence",
    "{} has no code": "Python's own sentence",
    "PyTorch {} has no": "the attribute was looked up",
    "nothing, if this machine has no GPU": "the sentence's own condition",
    "there is no NVIDIA driver": "the driver's library cannot be loaded",
    "this is WSL: reports have no kernels": "WSL's kernel names itself; NVIDIA documents what follows",
    "there are no measurements to": "the table has no row",
}


def sentences():
    """Return the texts of the rooms that tell of all or of none, without docstrings."""
    found = set()
    for path in (path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))):
        tree = ast.parse(path.read_text())
        nodes = list(ast.walk(tree))
        bodies = [node.body for node in nodes if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
        skipped = {body[0].value for body in bodies if body and isinstance(body[0], ast.Expr)}
        skipped |= {part for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in (node for node in nodes if node not in skipped):
            if isinstance(node, ast.JoinedStr):
                text = "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            else:
                text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            if len(text) > 12 and ABSOLUTE.search(text):
                found.add(text)
    return found


def test_every_absolute_sentence_is_listed_with_what_proves_it():
    texts = sentences()
    assert [text for text in texts if not any(part in text for part in PROVED)] == []
    assert [part for part in PROVED if not any(part in text for text in texts)] == []


def test_the_tests_that_prove_sentences_are_there():
    tests = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert [proof for proof in PROVED.values() if proof.startswith("test_") and proof not in tests] == []


@pytest.mark.parametrize(("phases", "alone"), [(("forward",), True), (("forward", "backward"), False)])
def test_all_of_a_step_is_in_a_phase_only_if_no_other_has_kernels(phases, alone):
    report = report_of(*(row("sgemm", 1000, "step", phase, category="gemm") for phase in phases), steps=1)
    assert ("all of it in forward" in verdict(per_step(report))) == alone
