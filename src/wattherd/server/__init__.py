"""`wattherd serve`: one cluster as a service, from journal to dashboard."""
