"""One Parquet file, read by row groups: only the columns that are needed, texts once per distinct value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..errors import NotAReport
from ..support.cores import cores
from .safety import require_within

NUMBER_BYTES = 8


class ParquetTable:
    """A table in a Parquet file: `rows` of it, in `groups`, of those columns that it has.

    Raises NotAReport, here and in `read`, if the file is damaged or has a column twice.
    """

    def __init__(self, path: Path, columns: Iterable[str], texts: Sequence[str]) -> None:
        self.path, self.texts = path, texts
        with self._refusing(), pq.ParquetFile(path) as file:
            self.metadata = file.metadata
            names = file.schema_arrow.names
        self.rows, self.groups = self.metadata.num_rows, range(self.metadata.num_row_groups)
        read_columns = {*columns, *texts}
        self.columns = [name for name in names if name in read_columns]
        if repeated := [name for name, count in Counter(self.columns).items() if count > 1]:
            raise NotAReport(f"{path} has several columns {repeated[0]!r}: it is not nsys's.")
        # The columns' bytes in memory: a number per row each, and texts as the file states. Its statistics of
        # single columns are not read: where they are damaged, Arrow ends the process.
        with self._refusing():
            stored = sum(self.metadata.row_group(group).total_byte_size for group in self.groups)
        require_within(path, int(max(stored, self.rows * NUMBER_BYTES * len(self.columns))))

    def read(self, groups: Sequence[int]) -> pa.Table:
        """Return the rows of some groups; texts come as dictionaries."""
        few = len(self.groups) < cores()  # then the columns of a group are read side by side
        with (
            self._refusing(),
            pq.ParquetFile(self.path, metadata=self.metadata, read_dictionary=self.texts) as file,
        ):
            table = file.read_row_groups(groups, columns=self.columns, use_threads=few)
            _check_codes(table)
            return table

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError, UnicodeError, KeyError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
            raise NotAReport(f"{self.path} is damaged: {reason}. Export the report again.") from error


def _check_codes(table: pa.Table) -> None:
    """Raise ArrowInvalid where a text's number is not in its dictionary; Arrow does not check that as it reads."""
    for column in table.columns:
        for chunk in column.chunks if pa.types.is_dictionary(column.type) else ():
            low, high = pc.min_max(chunk.indices).as_py().values()
            if high is not None and not 0 <= low <= high < len(chunk.dictionary):
                raise pa.ArrowInvalid(f"text {high} of {len(chunk.dictionary)}")
