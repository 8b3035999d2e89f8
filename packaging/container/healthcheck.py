"""Ask the broker in this container whether it serves: exit code 0 if it does, otherwise 1.

Only the standard library is imported, because the check runs every few seconds. The certificate is
not verified: the request does not leave the container, and the certificate is for another name.
"""

import os
import ssl
import sys
from http.client import HTTPConnection, HTTPException, HTTPSConnection

TIMEOUT_S = 4
OK = 200


def main() -> str | None:
    """Return why the broker does not serve; None if it serves."""
    port = int(os.environ.get("HOLDFAST_HTTP_API_PORT", "8711"))
    connection = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    if os.environ.get("HOLDFAST_HTTP_API_TLS_CERTIFICATE"):
        unverified = ssl.create_default_context()
        unverified.check_hostname = False
        unverified.verify_mode = ssl.CERT_NONE
        connection = HTTPSConnection("127.0.0.1", port, timeout=TIMEOUT_S, context=unverified)
    try:
        connection.request("GET", "/readyz")
        reply = connection.getresponse()
        body = reply.read(1000).decode(errors="replace")
    except (OSError, HTTPException) as error:
        return f"/readyz on port {port}: {error}"
    return None if reply.status == OK else f"/readyz on port {port}: {reply.status} {body}"


if __name__ == "__main__":
    sys.exit(main())
