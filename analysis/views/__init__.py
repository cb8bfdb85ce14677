"""Views turn a `Report` into a `Document`: each answers one question."""
