"""Commands of ours in processes of their own in which what answers is imported already."""

from tests.analysis.making.forking import Forking

MODULES = (
    "kernels",
    "opened",
    "presenters.as_table",
    "readers.nsys_parquet",
    "readers.nsys_sqlite",
    "readers.pytorch_trace",
    "readers.recorded",
    "readers.rocpd",
    "scrub",
    "views.overview",
    "views.registry",
)
NAMES = ("adbc_driver_sqlite.dbapi", *(f"nvtx_kernels.analysis.{name}" for name in MODULES))
run = Forking(*NAMES, within=1 << 30).run
