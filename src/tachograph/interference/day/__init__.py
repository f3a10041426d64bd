"""A day of jobs on some GPUs, placed by policies, in a world that is not the estimator."""
