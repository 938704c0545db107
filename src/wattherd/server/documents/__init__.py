"""What a service tells of itself, as JSON: jobs, arrays, queues, reasons, events."""
