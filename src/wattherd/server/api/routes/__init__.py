"""The addresses of REST API v1, by what they are about; each module adds its own to an app."""
