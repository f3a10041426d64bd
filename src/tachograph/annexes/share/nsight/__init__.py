"""Reports of Nsight Compute, read without a GPU: measurements of each profiled launch."""
