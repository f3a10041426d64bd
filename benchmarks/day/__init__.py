"""A simulated day of jobs that share GPUs."""
