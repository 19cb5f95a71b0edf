"""What things cost beside one another, measured in one run on one device: `memwrap bench`."""
