import pytest


@pytest.fixture
def path(tmp_path):
    """Where a test's report is written."""
    return tmp_path / "report.sqlite"
