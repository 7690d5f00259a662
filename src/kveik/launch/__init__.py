"""A fleet described in one file: its parts, their commands, and how they start, change and end."""
