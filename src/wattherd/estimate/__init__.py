"""What we believe: models of power, fragmentation and workload, as pure functions of numbers."""
