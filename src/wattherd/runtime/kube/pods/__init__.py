"""Pods and nodes in our terms: what is asked for, what there is, and who may go where."""
