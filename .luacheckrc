-- contrib/slurm: Slurm hands the table `slurm` to its scripts, and calls these functions of theirs
std = "lua51+lua53"
max_line_length = 120
read_globals = { "slurm" }
globals = {
  "slurm_cli_setup_defaults",
  "slurm_cli_pre_submit",
  "slurm_cli_post_submit",
}
