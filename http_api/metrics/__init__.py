"""The counters and histograms of the API, for Prometheus."""
