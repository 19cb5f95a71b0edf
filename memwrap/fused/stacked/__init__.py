"""The networks of several runs as one: weights lie along a new first axis, images one run after the other."""
