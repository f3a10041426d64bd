"""Annex lab: simulated clusters, the figures of the study, tuning, accuracy."""

import tachograph.catalog.private_files  # noqa: F401  # before matplotlib, which reads ./matplotlibrc
