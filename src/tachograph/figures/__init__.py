"""Figures: one file per figure, which computes its numbers and draws them; plots of pages as inline SVG."""
