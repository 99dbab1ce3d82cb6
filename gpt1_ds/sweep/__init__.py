"""Many runs: one trial, one runner for fine-tuning studies and scaling studies, here or as SLURM arrays."""
