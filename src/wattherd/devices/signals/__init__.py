"""Signals: limits that come from outside (a file, a web server, a grid operator), one URI each."""
