"""From an `Attribution` to times of phases, steps, gaps and copies: one module a question.

This room may import `account`, `attribution` and what is below them. It promises that each figure is of the steps
that the account counts, and that what a report does not tell is None or a sentence, and never 0.
"""
