"""Programs that run the client and the Spark data source of release 0.1.0, which `release.tar.xz`
contains (make.py)."""
