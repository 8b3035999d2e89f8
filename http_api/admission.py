"""Which new connections are let in: so many in all, so many of one client. Pure."""


class Admission:
    """Counts the connections that are open. What was let in must `leave` once."""

    def __init__(self, max_connections: int, max_per_client: int) -> None:
        self._max_connections = max_connections
        self._max_per_client = max_per_client
        self._by_client: dict[str, int] = {}
        self.count = 0

    def enter(self, client: str) -> str | None:
        """Let a connection in and return None, or return the problem that keeps it out."""
        if self.count >= self._max_connections:
            return "too-many-connections"
        of_client = self._by_client.get(client, 0)
        if of_client >= self._max_per_client:
            return "too-many-client-connections"
        self._by_client[client] = of_client + 1
        self.count += 1
        return None

    def leave(self, client: str) -> None:
        """Count a connection of this client as closed."""
        self.count -= 1
        left = self._by_client[client] - 1
        if left:
            self._by_client[client] = left
        else:
            del self._by_client[client]

    def of_client(self, client: str) -> int:
        """Return how many connections this client has."""
        return self._by_client.get(client, 0)
