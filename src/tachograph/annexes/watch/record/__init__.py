"""`tachograph record`: samples one command's GPUs into a lake of its own."""
