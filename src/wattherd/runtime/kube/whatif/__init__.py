"""Snapshots of a cluster, and what would happen on them: decisions without effect."""
