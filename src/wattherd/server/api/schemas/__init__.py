"""The shape of every document that the API answers with: one place for each."""
