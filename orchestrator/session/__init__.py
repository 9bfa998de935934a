"""What a session's folder looks like and how to read it safely. A part of this ships with the agent."""
