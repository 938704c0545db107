"""Tenancy: whose turn it is, and how much of the cluster is whose."""
