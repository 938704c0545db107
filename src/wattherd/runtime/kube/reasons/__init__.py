"""Why pods wait: found, put into words, and told on the cluster once."""
