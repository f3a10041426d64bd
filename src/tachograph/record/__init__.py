"""Recording: the GPUs of a command or a job are sampled into a lake of their own, which is then read like any other."""
