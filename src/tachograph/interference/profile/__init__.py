"""What profiled launches tell of a kernel: what it asks of a GPU, what limits it, what it is susceptible to."""
