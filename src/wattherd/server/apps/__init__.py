"""Pages that jobs serve, passed on to whoever may open them, and nobody else."""
