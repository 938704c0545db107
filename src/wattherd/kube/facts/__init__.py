"""What objects of the cluster say, read once: pods, nodes, workloads, budgets, claims."""
