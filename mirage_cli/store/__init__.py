"""What is kept: the SQLite database, its records, and their exchange between databases."""
