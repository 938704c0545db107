"""What outlives a process: run directories (and, later, the event log and its projections)."""
