"""Exports of job summaries, their GPUs, minutes and findings to databases, files and metrics."""
