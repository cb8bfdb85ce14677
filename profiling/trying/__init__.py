"""Apply known changes to a program as it is, one at a time, and measure what each saves.

    levers ────────────────► order ─► keeper ─► runs, its forks ─► judging ─► document
    a recording's answer ───┘                   │ overlay and guard: nothing else of the machine changes
                                                │ patches change the program, steps and courses measure it

The command is `profiling.try_`.
"""
