"""Files, progress, units and text: nothing here knows of profiles."""
