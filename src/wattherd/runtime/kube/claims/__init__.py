"""Watts as devices that a stock kube-scheduler allocates (dynamic resource allocation)."""
