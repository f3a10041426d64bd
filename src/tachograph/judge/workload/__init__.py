"""Workload classes of GPUs and jobs: table of rules, compiled form, shares, smoothing."""
