"""Exports: job summaries, their GPUs, minutes and findings, handed to other programs in forms that they read."""
