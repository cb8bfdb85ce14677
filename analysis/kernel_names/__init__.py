"""A demangled kernel name: its category, its short form, one spelling for all tools.

This room may import `support` alone. It promises that a name has one category, by the first
rule that matches, and that none is told by exclusion.
"""
