"""The types of request and reply bodies. The OpenAPI document is made from these types."""
