"""The account of watts: demand, budgets, caps and their read-back, energy, losses."""
