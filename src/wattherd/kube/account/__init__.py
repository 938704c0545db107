"""The account of the cluster: who holds which GPUs and watts, and who may go where."""
