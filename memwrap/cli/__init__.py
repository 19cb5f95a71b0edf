"""The command line: it parses, calls and shows. What deserves a test of its own lies below it."""
