"""`tachograph record`: the GPUs of one command, sampled beside it into a lake of its own."""
