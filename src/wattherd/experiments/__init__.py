"""Studies: simulated schedules, placement, power models, published papers, the grid side."""
