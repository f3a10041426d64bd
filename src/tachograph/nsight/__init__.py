"""Reports of Nsight Compute, read without a GPU: what each profiled launch of a kernel was
measured to do.
"""
