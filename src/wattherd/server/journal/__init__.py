"""The journal and the core that it feeds: entries are on disk before they happen."""
