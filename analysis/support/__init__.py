"""Files, progress, units and text: nothing here knows of profiles.

This room imports nothing of the project, and every other room may import it.
"""
