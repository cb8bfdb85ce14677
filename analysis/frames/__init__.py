"""What notebooks and scripts get: rankings and views as pandas frames."""
