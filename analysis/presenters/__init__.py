"""Presenters turn a `Report` into text; they know nothing else of the analysis."""
