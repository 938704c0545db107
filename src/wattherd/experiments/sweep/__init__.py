"""Many simulations at once: a grid of cells, computed by processes, each kept by what it is of."""
