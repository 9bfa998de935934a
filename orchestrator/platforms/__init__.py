"""Where sessions run: one protocol, one file or folder a platform, and what platforms share."""
