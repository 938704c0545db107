"""The command line: data on stdout, talk on stderr, one line for every error."""
