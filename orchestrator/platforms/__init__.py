"""Where sessions run: one protocol, one file or folder per platform, and what platforms share."""
