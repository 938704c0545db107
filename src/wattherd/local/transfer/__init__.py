"""A program of its own that brings jobs their data and code, and takes their results away.

It runs as the job's user, within the job's limits, outside of its container, and so can read and
write no more than the job may. Supervisors start it from an archive (`archive.py`) of these modules
and the few they import, so that any interpreter that the user may run can run it: beside the
standard library only S3 needs a package (`botocore`, extra `s3`).
"""
