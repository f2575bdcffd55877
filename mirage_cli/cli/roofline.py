"""`mirage roofline`."""
