"""`sim pack`: lists of pods placed on a cluster by each policy."""
