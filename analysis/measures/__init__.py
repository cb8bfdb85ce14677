"""From an `Attribution` to times of phases, steps, gaps and copies: one module a question."""
