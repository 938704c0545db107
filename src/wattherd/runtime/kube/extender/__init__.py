"""Answers to a stock kube-scheduler that asks where a pod should go."""
