"""The flags and the help of each command. What a command does is imported when it runs: torch takes seconds."""
