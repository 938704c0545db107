"""A running service as one object, and what watches its jobs."""
