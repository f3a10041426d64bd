"""Figures: text bars and sparklines, and plots as inline SVG. Values in, drawing out."""
