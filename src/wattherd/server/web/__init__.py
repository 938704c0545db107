"""The dashboard: pages for people, rendered here, refreshed in place while they are looked at."""
