"""From an `Attribution` to a `Report`: sums of work by range, kernel, category and phase."""
