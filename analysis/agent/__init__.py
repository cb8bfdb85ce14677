"""For coding agents: the commands' answers over the Model Context Protocol, and a page on how to use them.

This room may import all rooms of answers; only the list of commands knows it. It promises that names from a report
are quoted as names, and that no answer is longer than an agent can read.
"""
