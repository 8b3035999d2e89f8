"""Parts of a broker in this process, and stand-ins for a broker."""
