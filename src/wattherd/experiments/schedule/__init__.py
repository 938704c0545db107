"""`sim run`: training jobs under each scheduler and each way of sharing watts."""
