"""The docker platform: a session is a container on a local or remote Docker engine. See docs/docker.md."""
