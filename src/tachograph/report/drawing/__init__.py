"""Plots of the pages of a job and of waste, as inline SVG."""

import tachograph.catalog.private_files  # noqa: F401  # before matplotlib, which reads ./matplotlibrc
