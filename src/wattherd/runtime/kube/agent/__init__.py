"""The agent on a node: what its GPUs are to hold, and what it tells the API of them.

`caps` decides, `notes` says what is worth writing and when; both read no clock and do no I/O.
`pod_resources` asks the kubelet who has which GPU, `live` carries all of it to and from the API.
"""
