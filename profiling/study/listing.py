"""Every step's time, in the order it ran, as a benchmark script prints it while it goes."""

import statistics
from collections.abc import Iterator, Sequence

from nvtx_kernels.model.config import name_of

from .results import Row, capture_of

RULE = "=" * 60


def listing(rows: Sequence[Row]) -> str:
    """Return the steps of every row, phase by phase, in seconds."""
    return "".join(f"{line}\n" for row in rows if row["status"] == "ok" for line in _lines(row))


def _lines(row: Row) -> Iterator[str]:
    """Yield the lines of one row; in mode forward a step is its forward, and not listed again."""
    cell, phases = row["cell"], list(row["measured"][0])
    words = [f"mode: {cell['mode']}", cell["dtype"], f"{cell['attention']} attention"]
    words.append("compiled" if cell["compile"] else "eager")
    if cell["optimizer"]:
        words.append(f"{cell['optimizer']} AdamW")
    yield from (RULE, f"{name_of(cell).upper()} MODEL", RULE)
    yield f"Parameters: {row['parameters']:,}"
    yield f"Context length: {cell['context_length']}, batch size: {cell['batch_size']}, {', '.join(words)}, " + (
        f"capture {capture_of(row)}"
    )
    mean_s = {}
    for phase in phases[:1] if phases == ["forward", "step"] else phases:
        yield from ("", f"{phase.capitalize()}:")
        for title, steps in (("Warmup", row["warmup"]), ("Measurement", row["measured"])):
            yield f"  {title} steps:"
            for index, times in enumerate(steps, 1):
                yield f"    Step {index}: {times[phase] / 1e3:.6f} seconds"
        seconds = [times[phase] / 1e3 for times in row["measured"]]
        mean_s[phase] = statistics.fmean(seconds)
        spread = ""
        if len(seconds) > 1:
            std = statistics.stdev(seconds)
            spread = f" ± {std:.6f} seconds (CV: {100 * std / mean_s[phase]:.2f}%)"
        yield f"  Mean: {mean_s[phase]:.6f}{spread or ' seconds'}"
    if "backward" in mean_s:
        difference = mean_s["step"] - mean_s["forward"] - mean_s.get("optimizer", 0)
        yield (
            f"  Backward-only (total - forward): {difference:.6f} seconds "
            f"({difference / mean_s['forward']:.2f}x forward)"
        )
    yield ""
