"""The lake for notebooks: `tachograph.open()` returns tables, jobs, reports, figures and waste."""
