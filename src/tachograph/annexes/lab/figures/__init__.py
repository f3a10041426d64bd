"""Figures, one file each: compute numbers and draw them."""

import tachograph.catalog.private_files  # noqa: F401  # before matplotlib, which reads ./matplotlibrc
