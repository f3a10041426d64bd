"""Thresholds proposed from history, compared with labelled jobs, and written as a configuration."""
