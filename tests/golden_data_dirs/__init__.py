"""Data directories as each release left them, and what that release served from them."""
