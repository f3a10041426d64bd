"""Thresholds from labelled jobs, or proposed from history: population, search, configuration."""
