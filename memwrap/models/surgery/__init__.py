"""Finding a classifier's last layer and replacing it."""
