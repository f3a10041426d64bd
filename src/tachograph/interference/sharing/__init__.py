"""The estimator: what happens when kernels share a GPU, for a set and all pairs; checked against published numbers."""
