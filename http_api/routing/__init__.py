"""Finds and calls the endpoint of a request: routes, parameters, media types, OpenAPI document."""
