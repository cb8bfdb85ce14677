"""A demangled kernel name: its category, its short form, one spelling for all tools."""

from .short import distinct_short_names, short_name

__all__ = ["distinct_short_names", "short_name"]
