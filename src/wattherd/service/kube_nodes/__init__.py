"""What acts on the nodes of a cluster, put together: meters, knobs and switches behind the API."""
