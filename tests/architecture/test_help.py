"""`--help` of every command and view: short, as narrow as a terminal, and with every option."""

import argparse
from importlib import import_module

import pytest
from nvtx_kernels.analysis.support.arguments import TOPICS as GROUPS
from nvtx_kernels.analysis.view import parser as parser_of_views
from nvtx_kernels.analysis.views.registry import VIEWS

import nvtx_kernels.__main__
from nvtx_kernels.commands import COMMANDS
from nvtx_kernels.topics import TOPICS
from tests.analysis.making import checks

MOST_LINES, WIDEST = 40, 80
#: The words before `--help`, and the parser that it describes.
ASKED = [
    "",
    *COMMANDS,
    *(f"view {view}" for view in VIEWS),
    "doctor report.sqlite",
    "benchmark --attention",
]


def helped(monkeypatch, *words):
    """Return what a help of the program prints on a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", str(WIDEST))
    status, shown, errors = checks.said(nvtx_kernels.__main__, *words)
    assert (status, errors) == (0, "")
    return shown


def options_of(parser):
    """Return the options of a parser that its help must name."""
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    return {name for action in shown for name in action.option_strings}


def words_of(text):
    return set(text.replace(",", " ").split())


@pytest.mark.parametrize("asked", ASKED)
def test_help_fits_on_a_screen(asked, monkeypatch):
    lines = helped(monkeypatch, *asked.split(), "--help").splitlines()
    assert len(lines) <= MOST_LINES
    assert [line for line in lines if len(line) > WIDEST] == []


@pytest.mark.parametrize("topic", TOPICS)
def test_a_topic_fits_on_a_screen(topic, monkeypatch):
    lines = helped(monkeypatch, "help", topic).splitlines()
    assert len(lines) <= MOST_LINES
    assert [line for line in lines if len(line) > WIDEST] == []


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "view"])
def test_help_of_a_command_names_every_option(name, monkeypatch):
    parser = import_module(f"nvtx_kernels.{COMMANDS[name].module}").parser(f"nvtx-kernels {name}")
    assert options_of(parser) - words_of(helped(monkeypatch, name, "--help")) == set()


def test_help_of_a_view_names_every_option(monkeypatch):
    (views,) = (action for action in parser_of_views()._actions if isinstance(action.choices, dict))
    for name, parser in views.choices.items():
        assert options_of(parser) - words_of(helped(monkeypatch, "view", name, "--help")) == set(), name


@pytest.mark.parametrize("name", ["rank", "compare", "run", "benchmark", "nsys", "ask", "page"])
def test_a_topic_explains_every_option_that_a_help_only_names(name, monkeypatch):
    parser = import_module(f"nvtx_kernels.{COMMANDS[name].module}").parser(f"nvtx-kernels {name}")
    for group in parser._action_groups:
        if group.title in GROUPS:
            shown = [action for action in group._group_actions if action.help != argparse.SUPPRESS]
            explained = words_of(helped(monkeypatch, "help", GROUPS[group.title]))
            assert {action.option_strings[-1] for action in shown} - explained == set()


def test_help_explains_a_command_too(monkeypatch):
    assert helped(monkeypatch, "help", "page") == helped(monkeypatch, "page", "--help")
    assert helped(monkeypatch, "help") == helped(monkeypatch)


def test_a_wrong_topic_is_answered_in_one_line():
    status, _, errors = checks.said(nvtx_kernels.__main__, "help", "rages")
    assert (status, errors.count("\n")) == (2, 1)
    assert "there is no topic or command 'rages' (did you mean ranges?)" in errors
