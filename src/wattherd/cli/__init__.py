"""The command line: data on stdout, talk on stderr, one line for every error."""

import os

SHELL = dict(os.environ)
"""The environment as the shell gave it, before any command sets something for itself."""
