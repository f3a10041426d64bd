"""From kernels to jobs: mixes of kernels, coarse demands of recorded means, advice on how to share."""
