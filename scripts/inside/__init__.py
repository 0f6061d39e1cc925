"""What runs inside a pair's venv: Python >= 3.9, standard library and torch only, imported by nothing else."""
