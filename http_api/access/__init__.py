"""Access: who is asking, what they may do, and the record of what they did."""
