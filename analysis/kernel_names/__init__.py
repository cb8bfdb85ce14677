"""A demangled kernel name: its category, its short form, one spelling for all tools."""
