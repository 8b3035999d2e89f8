"""The HTTP API of the broker.

Read `routes.py` first. `wire/` converts bytes to requests and replies to bytes. `access/` and
`limits/` decide which requests are refused. `routing/` finds the endpoint. `endpoints/` has the
endpoints, and `schemas/` the bodies of their requests and replies. `metrics.py` counts.
"""
