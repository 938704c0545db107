"""The processes that run on Kubernetes, put together from settings."""
