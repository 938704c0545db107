"""Everything that speaks with the API server and keeps running."""
