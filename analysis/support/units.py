"""Numbers as text: all formatting is done here."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

#: Units as they are written on a command line.
UNITS_NS = {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}
TIME_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
SI = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
BINARY = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))
ABSENT = "–"
#: A column with a unit of its own shows its shortest time with two digits, unless its longest gets too long in it.
TWO_DIGITS, TOO_LONG = 0.1, 100_000


@dataclass(frozen=True, slots=True)
class TimeUnit:
    """A unit that suits all times of one table, and the decimals that most of them need."""

    ns: float
    name: str
    decimals: int = 2

    def text(self, time_ns: float) -> str:
        """Return a time in this unit: with one more decimal if it would be 0, and ≈0 for still shorter times."""
        time = time_ns / self.ns
        hidden = 0.5 * 10**-self.decimals
        if self.ns == 1 and (abs(time) >= 1 or not time):
            return f"{time:,.0f}"
        if 0 < abs(time) < hidden:
            return f"{time:.{self.decimals + 1}f}" if abs(time) >= hidden / 10 else "≈0"
        return f"{time:,.{self.decimals}f}"


def time_unit(times_ns: Iterable[float]) -> TimeUnit:
    """Choose the largest unit in which the largest time is at least one.

    Where a quarter of the times are shorter than one, two decimals show little of them: seconds then give way to
    milliseconds, unless the longest gets too long, and a table of times below ten has a third decimal.
    """
    times = sorted(abs(time) for time in times_ns if time) or [0.0]
    ns, name = next(((ns, name) for ns, name in TIME_UNITS if times[-1] >= ns), TIME_UNITS[-1])
    if times[len(times) // 4] >= ns or ns == 1:
        return TimeUnit(ns, name)
    if name == "s" and times[-1] < TOO_LONG * 1e6:
        return TimeUnit(1e6, "ms")
    return TimeUnit(ns, name, 3 if times[-1] < 10 * ns else 2)


def column_unit(times_ns: Iterable[float]) -> TimeUnit:
    """Choose the largest unit that shows two digits of the shortest time, of those that suit the longest."""
    times = [abs(time) for time in times_ns if time] or [0.0]
    suiting = [(ns, name) for ns, name in TIME_UNITS if max(times) < (TOO_LONG - 0.005) * ns] or [TIME_UNITS[0]]
    return TimeUnit(*next(((ns, name) for ns, name in suiting if min(times) >= TWO_DIGITS * ns), suiting[-1]))


def time_text(time_ns: float) -> str:
    """Return one time with its own unit."""
    unit = time_unit([time_ns])
    return f"{unit.text(time_ns)} {unit.name}"


def time_in_digits(time_ns: float) -> str:
    """Return one time in three digits with its own unit, for sentences: 80.5 ms, 2.78 ms, 192 ms."""
    unit = time_unit([time_ns])
    time = f"{time_ns / unit.ns:#.3g}"  # with the zeros that count
    is_whole = "e" in time or unit.ns == 1
    return f"{digits_text(time_ns / unit.ns, 3) if is_whole else time.rstrip('.')} {unit.name}"


def time_range(low_ns: float, high_ns: float) -> str:
    """Return two times as a range, of one if they read alike: 281 to 513 ms, 679 µs to 1.16 ms, 28.1 ms."""
    low, high = map(time_in_digits, (low_ns, high_ns))
    if low == high:
        return high
    unit = high.partition(" ")[2]
    return f"{low.removesuffix(f' {unit}')} to {high}"


def time_and_noise(time_ns: float, noise_ns: float, least_ns: float = 0.0) -> str:
    """Return a time and its noise in one unit, that of the larger one: `20.3 ± 6.7 ms`, `−0.1 ± 22 ms`.

    A noise that is not finite is unknown: `20 ± ? ms`. The unit is not smaller than that of `least_ns`.
    """
    if not math.isfinite(noise_ns):
        unit = time_unit([max(abs(time_ns), least_ns)])
        return f"{digits_text(time_ns / unit.ns, 2)} ± ? {unit.name}".replace("-", "−")
    unit = time_unit([max(abs(time_ns), noise_ns, least_ns)])
    time, noise = time_ns / unit.ns, digits_text(noise_ns / unit.ns, 2)
    decimals = len(noise.partition(".")[2]) or int(abs(time) < 1)
    return f"{round(time, decimals) + 0.0:,.{decimals}f} ± {noise} {unit.name}".replace("-", "−")


def share_text(share: float, decimals: int = 1) -> str:
    """Return a fraction of one in percent."""
    return f"{round(100 * share, decimals) + 0.0:.{decimals}f}%"  # adding 0.0 makes -0.0 a 0.0


def count_text(count: float) -> str:
    """Return a count; per step it may be a fraction, whose sums miss a whole number by rounding alone."""
    return f"{count:,.0f}" if abs(count - round(count)) <= 1e-9 * abs(count) else f"{count:,.2f}"


def counted(count: float, thing: str, things: str = "") -> str:
    """Return a count with its noun: 1 kernel, 2 kernels; `things` is a plural that does not end in s alone."""
    return f"{count_text(count)} {thing if count == 1 else things or f'{thing}s'}"


def ordinal(number: int) -> str:
    """Return a number as an ordinal: 1st, 2nd, 11th."""
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def digits_text(value: float, digits: int) -> str:
    """Return a number with `digits` significant digits, without an exponent."""
    return f"{float(f'{value:.{digits}g}'):,.10g}"


def si_text(value: float, unit: str) -> str:
    """Return a quantity with an SI prefix: 1.2 TFLOP/s."""
    scale, prefix = next(((scale, prefix) for scale, prefix in SI if abs(value) >= scale), SI[-1])
    return f"{value / scale:.3g} {prefix}{unit}"


def mib_text(count: float) -> str:
    """Return a number of bytes in MiB, a small one with two digits."""
    size = count / 2**20
    return f"{size:,.0f} MiB" if size >= 10 else f"{size:.2g} MiB"


def bytes_text(count: float) -> str:
    """Return bytes with a binary prefix."""
    scale, unit = next(((scale, unit) for scale, unit in BINARY if abs(count) >= scale), BINARY[-1])
    return f"{count / scale:.1f} {unit}"
