"""Results as tables, plots and screens."""
