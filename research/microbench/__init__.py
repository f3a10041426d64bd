"""Micro-benchmarks of a GPU: they calibrate the estimator of `tachograph.annexes.share`."""
