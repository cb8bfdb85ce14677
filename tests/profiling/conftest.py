import sys

import pytest


@pytest.fixture
def path(tmp_path):
    """Where a test's report is written."""
    return tmp_path / "report.sqlite"


@pytest.fixture(autouse=True)
def interpreter(monkeypatch):
    """Put back what `record` and `benchmark` leave of the program that their process has become."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
