"""Apply known changes to a program as it is, one at a time, and measure what each saves.

    levers ────────────────► order ─► keeper ─► runs, its forks ─► judging ─► document
    a recording's answer ───┘                   │ overlay and guard: nothing else of the machine changes
                                                │ patches change the program, steps and courses measure it

The command is `profiling.try_`.

This room may import `training`, `recorder` and what is below them. It promises that a run changes nothing of the
machine but its own folder, and that what is not surely faster is not called so.
"""
