#!/bin/bash
#SBATCH --job-name=qmc
#SBATCH --partition=shared
#SBATCH --gpus=2
#SBATCH --time=08:05:00
#SBATCH --mem-per-gpu=64G

srun ./qmc input.xml
