"""Kernels that each load one resource of a GPU, run alone, in turn and together: the estimator's measure of a GPU."""
