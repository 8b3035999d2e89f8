"""What a user gives: options, their values, the connection, and messages as lines of text."""
