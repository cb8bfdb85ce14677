"""One kernel has one spelling, whichever tool demangled its name; two kernels never share one."""

import csv

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvtx_kernels.analysis.compare.changes import changes, compare
from nvtx_kernels.analysis.compare.rules import judge, parse
from nvtx_kernels.analysis.kernel_names.categories import categorize
from nvtx_kernels.analysis.kernel_names.short import short_name
from nvtx_kernels.analysis.kernel_names.spelling import canonical_spelling, spelled_like
from nvtx_kernels.analysis.report import merged

from tests.analysis.making.bundled import DATA, SHARED
from tests.analysis.making.made_reports import report_of, row
from tests.analysis.making.real_kernels import kernels_of

REPORTS = [*sorted(DATA.glob("*.sqlite")), *sorted(SHARED.glob("*/*.sqlite"))]


def pairs():
    """Return real names as nsys writes them, each with what the C++ library makes of the same symbol."""
    with (DATA / "kernel_spellings.csv").open(encoding="utf-8", newline="") as lines:
        return [(line["nsys"], line["recorded"]) for line in csv.DictReader(lines)]


@pytest.mark.parametrize(("nsys", "recorded"), pairs())
def test_both_spellings_of_a_symbol_become_one_and_say_the_same(nsys, recorded):
    assert canonical_spelling(nsys) == canonical_spelling(recorded)
    assert categorize([nsys]) == categorize([recorded])
    assert short_name(nsys) == short_name(recorded)


def test_a_recording_names_the_kernels_that_nsys_names():
    ours, theirs = (kernels_of(DATA / f"h200_{name}.sqlite") for name in ("recorder", "train_fp32"))
    assert len(ours) == len(theirs) == 47
    assert {canonical_spelling(name) for name in ours} == {canonical_spelling(name) for name in theirs}
    assert set(spelled_like(ours, theirs).values()) == theirs.keys() - ours.keys()


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.name)
def test_no_two_kernels_of_a_report_become_one(report):
    names = kernels_of(report)
    assert len({canonical_spelling(name) for name in names}) == len(names)


def test_no_two_symbols_of_the_table_become_one():
    for spelled in zip(*pairs(), strict=True):
        assert len({canonical_spelling(name) for name in spelled}) == len(pairs())


SAME = {
    "void f<(int)4, (bool)1, (unsigned long)2>(T1)": "void f<4, true, 2ul>(T1)",
    "f<(int)-4, (unsigned int)2>()": "f<-4, 2u>()",
    "void k<float>(const T1 *, T1 *const *)": "void k<float>(float const*, float* const*)",
    "void k<const float>(const T1 &)": "void k<float const>(float const&)",
    "void k<char *>(const T1, T1 &)": "void k<char*>(char* const, char*&)",
    "void k<int &>(T1 &&)": "void k<int&>(int&)",
    "void k<A, B, C<int>>(T1, T2...)": "void k<A, B, C<int> >(A, B, C<int>)",
    "void k<A>(int, T2 *...)": "void k<A>(int)",
    "void k<void (*)(int), (ns::E)0>(T1)": "void k<void (*)(int), (ns::E)0>(void (*)(int))",
    "k<unsigned long f<int>(T1 *)::[lambda(const int *) (instance 2)]>(T1)": (
        "k<f<int>(int*)::{lambda(int const*)#2}>(f<int>(int*)::{lambda(int const*)#2})"
    ),
    "void <unnamed>::k<S<A>::operator ()<B>(const T1 &) const::[lambda() (instance 1)]>(T1)": (
        "void (anonymous namespace)::k<S<A>::operator()<B>(B const&) const::{lambda()#1}>"
        "(S<A>::operator()<B>(B const&) const::{lambda()#1})"
    ),
}


@pytest.mark.parametrize(("nsys", "recorded"), SAME.items())
def test_each_way_to_differ_is_known(nsys, recorded):
    assert canonical_spelling(nsys) == canonical_spelling(recorded)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("k<(int)4>(T1)", "k<4u>(T1)"),
        ("k<float const>(T1)", "k<float>(T1)"),
        ("void k<f(int)::[lambda(int) (instance 1)]>(T1)", "void k<f(int)::{lambda(int)#2}>(T1)"),
        ("k(long, float *)", "k(float *)"),
        ("k<true, 1>()", "k<1, true>()"),
        ("copy a (Device)", "copy b (Device)"),
    ],
)
def test_what_differs_in_more_than_spelling_stays_apart(one, other):
    assert canonical_spelling(one) != canonical_spelling(other)


@pytest.mark.parametrize("name", ["k<", "k>", "k(<)>", "<" * 9000, "sgemm_128x128_nn", "k<" + "x" * 40_000])
def test_what_is_no_balanced_name_of_bounded_length_stays_as_it_is(name):
    assert canonical_spelling(name) == name


def test_overloads_of_one_report_are_not_joined():
    overloads = ["k<long>(T1 *)", "k<long>(T1)"]
    assert spelled_like(overloads, ["k<long>(long*)"]) == {}


# Types and literals as nsys and as the C++ library write them.
LEAVES = st.sampled_from(
    [("float",) * 2, ("unsigned int",) * 2, ("<unnamed>::S", "(anonymous namespace)::S"), ("(int)-4", "-4"),
     ("(bool)1", "true"), ("(unsigned long)2", "2ul")]
)  # fmt: skip
POINTERS = st.sampled_from(
    [("{} *", "{}*"), ("const {} *", "{} const*"), ("const {} *const *", "{} const* const*")]
)
LOCAL = (
    "void g<{0}>(const P<T1> &, int)::[lambda(bool) (instance 3)]",
    "g<{0}>(P<{0}> const&, int)::{{lambda(bool)#3}}",
)  # fmt: skip


def filled(forms, *parts):
    """Put both spellings of `parts` into both forms."""
    return tuple(form.format(*(part[side] for part in parts)) for side, form in enumerate(forms))


SPELLINGS = st.recursive(
    LEAVES,
    lambda inner: (
        st.builds(filled, st.just(("ns::F<{}, {}>", "ns::F<{}, {} >")), inner, inner)
        | st.builds(filled, st.just(LOCAL), inner)
        | st.builds(filled, POINTERS, st.builds(filled, st.just(("F<{}>", "F<{}>")), inner))
    ),
    max_leaves=6,
).map(lambda argument: filled(("void k<{}, int>(T2, P<T1> *)", "void k<{0}, int>(int, P<{0}>*)"), argument))


@given(SPELLINGS, SPELLINGS)
def test_kernels_share_a_spelling_exactly_if_they_are_the_same(one, other):
    assert canonical_spelling(one[0]) == canonical_spelling(one[1])
    assert (canonical_spelling(one[0]) == canonical_spelling(other[1])) == (one == other)


NSYS, RECORDED = next(iter(SAME.items()))


def test_kernels_are_compared_and_added_up_whatever_the_spelling():
    a, b = report_of(row(NSYS, 5, "step"), steps=1), report_of(row(RECORDED, 7, "step"), steps=1)
    (change,) = changes(compare(a, b), "kernel")
    assert (change.key[0], change.a_ns, change.b_ns, change.state) == (NSYS, 5, 7, "")
    (together,) = merged([a, b], "both").kernels
    assert (together.kernel, together.total_ns) == (NSYS, 12)
    assert judge(parse(f"kernel:{RECORDED} > +1ns"), compare(a, b)).change.b_ns == 7


def test_copies_keep_their_names():
    one, other = report_of(row("[(int)1]", 5, kind="memcpy")), report_of(row("[1]", 5, kind="memcpy"))
    assert {change.state for change in changes(compare(one, other, all_work=True), "kernel")} == {"new", "gone"}
