"""What a session's folder looks like and how it is read. Ships with the agent: both sides read with care."""
