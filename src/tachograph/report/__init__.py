"""Reports: one report object per question; text, JSON and page show the same numbers."""

import tachograph.catalog.private_files  # noqa: F401  # before matplotlib, which reads ./matplotlibrc
