"""From the store back to a core: replay, snapshots, checks, what-if."""
