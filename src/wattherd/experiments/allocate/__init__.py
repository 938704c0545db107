"""`power allocate`: watts shared among measured curves, against optimum and baselines."""
