"""The REST API: routes, schemas, connections, metrics."""
