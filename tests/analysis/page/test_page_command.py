"""Where the command writes a page, what it replaces, and when it opens it."""

import webbrowser

import pytest
from nvtx_kernels.analysis import page as command

from tests.analysis.making.made_reports import two_steps


@pytest.fixture
def opened(monkeypatch):
    """Return the addresses that a browser is asked for; there is one."""
    asked = []
    monkeypatch.setattr(webbrowser, "open", lambda address: not asked.append(address))
    return asked


def test_a_page_is_written_next_to_its_report_and_again(tmp_path, capsys, opened):
    report = two_steps(tmp_path / "r.sqlite")
    for _ in range(2):
        assert command.main([str(report)]) == 0
        assert capsys.readouterr().out.startswith(f"{tmp_path / 'r.html'}, ")
    assert (tmp_path / "r.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert opened == []


def test_several_reports_have_their_page_next_to_the_first(tmp_path):
    (tmp_path / "b").mkdir()
    reports = [two_steps(tmp_path / "a.sqlite"), two_steps(tmp_path / "b/b.sqlite", slower=60)]
    assert command.main(list(map(str, reports))) == 0
    assert (tmp_path / "a.html").exists()


def test_a_folder_of_reports_has_the_page_of_its_reports(tmp_path):
    (tmp_path / "job").mkdir()
    reports = [two_steps(tmp_path / "job/a.sqlite"), two_steps(tmp_path / "job/b.sqlite", slower=60)]
    for words, page in ([str(tmp_path / "job")], "folder"), (map(str, reports), "files"):
        assert command.main([*words, "-o", str(tmp_path / page)]) == 0
    assert (tmp_path / "folder").read_bytes() == (tmp_path / "files").read_bytes()
    assert command.main([str(tmp_path / "job")]) == 0
    assert (tmp_path / "job.html").exists()


@pytest.mark.parametrize("content", ["", "notes", "<!doctype html><title>mine"])
def test_what_is_no_page_is_not_replaced_unless_it_is_named(tmp_path, capsys, content):
    report, mine = two_steps(tmp_path / "r.sqlite"), tmp_path / "r.html"
    mine.write_text(content)
    assert command.main([str(report)]) == 2
    assert "is not a page of this command: name another with -o" in capsys.readouterr().err
    assert mine.read_text() == content
    assert command.main([str(report), "-o", str(mine)]) == 0
    assert len(mine.read_bytes()) > 50_000


def test_a_page_is_opened_on_request(tmp_path, capsys, opened):
    report = two_steps(tmp_path / "r 1.sqlite")
    assert command.main([str(report), "--open"]) == 0
    assert opened == [(tmp_path / "r 1.html").as_uri()]
    assert "Next: " not in capsys.readouterr().out


def test_without_a_browser_a_sentence_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(webbrowser, "open", lambda address: False)
    assert command.main([str(two_steps(tmp_path / "r.sqlite")), "--open"]) == 0
    assert "No browser was found: open it by hand." in capsys.readouterr().out
