"""Workload classes of GPUs and jobs: one table of rules, its compiled form, shares and
smoothing.
"""
