"""What a service is told at its start."""
