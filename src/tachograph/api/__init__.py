"""The lake for notebooks: `tachograph.open()` returns tables, jobs, reports, figures and waste."""

import tachograph.catalog.private_files  # noqa: F401  # before matplotlib, which reads ./matplotlibrc
