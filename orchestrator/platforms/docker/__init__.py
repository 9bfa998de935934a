"""The docker platform: a session is a container on a Docker engine, near or far. See docs/docker.md."""
