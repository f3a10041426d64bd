"""Tachograph: the flight recorder for GPU jobs."""

__version__ = "0.1.0"
