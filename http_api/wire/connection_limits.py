"""Decides which new connections are admitted: limits in total and per client. Pure."""


class Admission:
    """Counts open connections. For each admitted connection, `leave` must be called once."""

    def __init__(self, max_connections: int, max_per_client: int) -> None:
        self._max_connections = max_connections
        self._max_per_client = max_per_client
        self._by_client: dict[str, int] = {}
        self.count = 0

    def enter(self, client: str) -> str | None:
        """Admit a connection and return None, or refuse it and return the kind of the problem."""
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
