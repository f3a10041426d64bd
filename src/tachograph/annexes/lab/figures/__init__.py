"""Figures: one file per figure, which computes its numbers and draws them; plots of pages as
inline SVG.
"""

import tachograph.catalog.private_files  # noqa: F401  # before matplotlib, which reads ./matplotlibrc
