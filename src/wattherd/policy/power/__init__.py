"""Power: at how many watts each running job works. One small file per policy."""
