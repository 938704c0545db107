"""`wattherd bench`: every policy on fixed workloads under fixed budgets, ranked."""
