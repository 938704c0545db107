"""Queue objects as capacity queues of the core."""
