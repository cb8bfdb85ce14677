"""From a `Trace` to an `Attribution`: which ranges caused each piece of work."""
