"""What outlives a process: run directories, and the store of a live service."""
