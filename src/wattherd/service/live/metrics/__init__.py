"""What a Prometheus may scrape of a live site."""
